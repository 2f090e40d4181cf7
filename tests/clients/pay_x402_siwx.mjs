// @x402/fetch with the sign-in-with-x extension: signs in where a 402 asks for an identity, pays where it asks for money.
import { registerExactEvmScheme } from "@x402/evm/exact/client";
import { createSIWxClientExtension } from "@x402/extensions/sign-in-with-x";
import { decodePaymentResponseHeader, wrapFetchWithPayment, x402Client } from "@x402/fetch";

import { init, payer, target, tell } from "./one_request.mjs";

const client = new x402Client();
registerExactEvmScheme(client, { signer: payer });
client.registerExtension(createSIWxClientExtension({ signers: [payer] }));
const fetchWithPayment = wrapFetchWithPayment(fetch, client);

await tell(
  () => fetchWithPayment(target, init),
  (response) => {
    const shown = response.headers.get("PAYMENT-RESPONSE");
    return shown && decodePaymentResponseHeader(shown);
  },
);
