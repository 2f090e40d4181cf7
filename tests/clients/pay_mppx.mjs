// mppx (MPP, evm/charge), default settings: the networks and currencies that its user allows are its only options.
import { Receipt } from "mppx";
import { Mppx, evm } from "mppx/client";
import { assets } from "mppx/evm";

import { init, payer, target, tell } from "./one_request.mjs";

const { fetch: fetchWithPayment } = Mppx.create({
  methods: [evm.charge({ account: payer, networks: [84532], currencies: [assets.baseSepolia.USDC] })],
  polyfill: false,
});

await tell(
  () => fetchWithPayment(target, init),
  (response) => (response.headers.has("Payment-Receipt") ? Receipt.fromResponse(response) : null),
);
