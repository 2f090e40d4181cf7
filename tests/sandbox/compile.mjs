// Compiles the Solidity sources named on the command line and prints {artifact path: artifact text} as JSON.
// With --write it writes the artifacts instead. One artifact per contract, beside its source; interfaces and abstract
// contracts get none. Nothing in an artifact depends on where the sources lie (no metadata, flat source names).
import { createRequire } from "node:module";
import { readFileSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";

const solc = createRequire(import.meta.url)("solc");
const write = process.argv.includes("--write");
const paths = process.argv.slice(2).filter((argument) => argument !== "--write");

// paris: the oldest rules that every chain of the presets obeys (no PUSH0).
const settings = {
  evmVersion: "paris",
  metadata: { appendCBOR: false, bytecodeHash: "none" },
  optimizer: { enabled: true, runs: 200 },
};
const input = {
  language: "Solidity",
  sources: Object.fromEntries(paths.map((path) => [basename(path), { content: readFileSync(path, "utf8") }])),
  settings: {
    ...settings,
    outputSelection: { "*": { "*": ["abi", "evm.bytecode.object", "evm.deployedBytecode.object"] } },
  },
};

const output = JSON.parse(solc.compile(JSON.stringify(input)));
const complaints = output.errors ?? [];
for (const complaint of complaints) process.stderr.write(complaint.formattedMessage + "\n");
if (complaints.length > 0) process.exit(1);

const artifacts = {};
for (const path of paths) {
  for (const [contractName, contract] of Object.entries(output.contracts[basename(path)])) {
    if (contract.evm.bytecode.object === "") continue;
    const artifact = {
      contractName,
      sourceName: basename(path),
      compiler: { name: "solc-js", version: solc.version(), settings },
      abi: contract.abi,
      bytecode: "0x" + contract.evm.bytecode.object,
      deployedBytecode: "0x" + contract.evm.deployedBytecode.object,
    };
    artifacts[join(dirname(path), contractName + ".json")] = JSON.stringify(artifact, null, 1) + "\n";
  }
}

if (write) for (const [path, text] of Object.entries(artifacts)) writeFileSync(path, text);
else process.stdout.write(JSON.stringify(artifacts));
