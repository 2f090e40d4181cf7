// @x402/axios (protocol v2), default settings. axios throws at a 4xx or 5xx; its response is told all the same.
import { decodePaymentResponseHeader, wrapAxiosWithPayment, x402Client } from "@x402/axios";
import { registerExactEvmScheme } from "@x402/evm/exact/client";
import axios from "axios";

import { init, payer, target, tell } from "./one_request.mjs";

const client = new x402Client();
registerExactEvmScheme(client, { signer: payer });
const api = wrapAxiosWithPayment(axios.create(), client);

await tell(
  async () => {
    const asked = { url: target, method: init.method, headers: init.headers, data: init.body };
    const answer = await api.request(asked).catch((error) => {
      if (!error.response) throw error;
      return error.response;
    });
    const text = typeof answer.data === "string" ? answer.data : JSON.stringify(answer.data);
    return { status: answer.status, headers: new Headers(answer.headers), text: async () => text };
  },
  (response) => {
    const shown = response.headers.get("PAYMENT-RESPONSE");
    return shown && decodePaymentResponseHeader(shown);
  },
);
