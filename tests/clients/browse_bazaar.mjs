// The bazaar extension of @x402/extensions, asking a gateway as if it were a facilitator.
// Usage: node browse_bazaar.mjs BASE list|search [PARAMETERS AS JSON]
import { HTTPFacilitatorClient } from "@x402/core/http";
import { withBazaar } from "@x402/extensions/bazaar";

const [url, what, parameters = "{}"] = process.argv.slice(2);
const { bazaar } = withBazaar(new HTTPFacilitatorClient({ url })).extensions;
const asked = JSON.parse(parameters);
let told;
try {
  told = { found: await (what === "search" ? bazaar.search(asked) : bazaar.listResources(asked)), error: null };
} catch (error) {
  told = { found: null, error: `${error?.name}: ${error?.message}` };
}
console.log(JSON.stringify(told));
