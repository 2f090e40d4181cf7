// @x402/fetch (protocol v2), default settings.
import { registerExactEvmScheme } from "@x402/evm/exact/client";
import { decodePaymentResponseHeader, wrapFetchWithPayment, x402Client } from "@x402/fetch";

import { init, payer, target, tell } from "./one_request.mjs";

const client = new x402Client();
registerExactEvmScheme(client, { signer: payer });
const fetchWithPayment = wrapFetchWithPayment(fetch, client);

await tell(
  () => fetchWithPayment(target, init),
  (response) => {
    const shown = response.headers.get("PAYMENT-RESPONSE");
    return shown && decodePaymentResponseHeader(shown);
  },
);
