// The audit of @agentcash/discovery: what a crawler of paid APIs finds in an OpenAPI document, and in the 402 of each paid
// operation that it names. Usage: node audit_discovery.mjs ORIGIN DOCUMENT_URL [VALUES OF PATH PARAMETERS AS JSON]
import {
  checkL2ForOpenAPI,
  checkL4ForOpenAPI,
  getL3,
  getOpenAPI,
  getProbe,
  getWarningsForL2,
  getWarningsForL3,
  getWarningsForL4,
  getWarningsForOpenAPI,
} from "@agentcash/discovery";

const [origin, url, values = "{}"] = process.argv.slice(2);
const fill = (path) => path.replace(/\{([^}]+)\}/g, (_, name) => encodeURIComponent(JSON.parse(values)[name] ?? "x"));

const document = await getOpenAPI(origin, undefined, undefined, url);
if (document.isErr()) throw new Error(JSON.stringify(document.error));
const openapi = document.value;
const warnings = [...getWarningsForOpenAPI(openapi)];
const l2 = checkL2ForOpenAPI(openapi);
warnings.push(...getWarningsForL2(l2), ...getWarningsForL4(checkL4ForOpenAPI(openapi)));
const routes = [];
for (const { method, path, authMode, price, protocols } of l2.routes) {
  routes.push({ method, path, authMode, price, protocols });
  if (authMode !== "paid") continue;
  const probe = await getProbe(origin + fill(path));
  if (probe.isErr()) throw new Error(JSON.stringify(probe.error));
  const answers = probe.value.filter((answer) => answer.method === method);
  const found = getWarningsForL3(getL3(openapi, answers, path, method));
  warnings.push(...found.map((warning) => ({ ...warning, route: `${method} ${path}` })));
}
console.log(JSON.stringify({ routes, warnings }));
