// x402-fetch 1.x (protocol v1: body of the 402, X-PAYMENT), default settings.
import { decodeXPaymentResponse, wrapFetchWithPayment } from "x402-fetch";

import { init, payer, target, tell } from "./one_request.mjs";

const fetchWithPayment = wrapFetchWithPayment(fetch, payer);

await tell(
  () => fetchWithPayment(target, init),
  (response) => {
    const shown = response.headers.get("X-PAYMENT-RESPONSE");
    return shown && decodeXPaymentResponse(shown);
  },
);
