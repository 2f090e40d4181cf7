// Keccak-256 (the original padding), for the hash of a request body in a bound signature. Plain and slow: a body of a form is short.
// Loaded where a transaction pays.

const RATE = 136;
const MASK = (1n << 64n) - 1n;
const ROTATIONS = [0, 1, 62, 28, 27, 36, 44, 6, 55, 20, 3, 10, 43, 25, 39, 41, 45, 15, 21, 8, 18, 2, 61, 56, 14];

/** @returns {bigint[]} */
function makeRoundConstants() {
  const constants = [];
  let bits = 1;
  for (let round = 0; round < 24; round++) {
    let constant = 0n;
    for (let j = 0; j < 7; j++) {
      if (bits & 1) constant |= 1n << BigInt((1 << j) - 1);
      bits = (bits << 1) ^ (bits & 0x80 ? 0x171 : 0);
    }
    constants.push(constant);
  }
  return constants;
}

const ROUND_CONSTANTS = makeRoundConstants();

/** @param {bigint} lane @param {number} by */
const rotate = (lane, by) => ((lane << BigInt(by)) | (lane >> BigInt(64 - by))) & MASK;

/** @param {bigint[]} state */
function permute(state) {
  for (const constant of ROUND_CONSTANTS) {
    const columns = [0, 1, 2, 3, 4].map((x) => state[x] ^ state[x + 5] ^ state[x + 10] ^ state[x + 15] ^ state[x + 20]);
    for (let i = 0; i < 25; i++) state[i] ^= columns[(i + 4) % 5] ^ rotate(columns[(i + 1) % 5], 1);
    /** @type {bigint[]} */
    const moved = new Array(25);
    for (let i = 0; i < 25; i++) {
      const x = i % 5;
      const y = (i - x) / 5;
      moved[y + 5 * ((2 * x + 3 * y) % 5)] = rotate(state[i], ROTATIONS[i]);
    }
    for (let i = 0; i < 25; i++) {
      const row = i - (i % 5);
      state[i] = moved[i] ^ (~moved[row + ((i + 1) % 5)] & MASK & moved[row + ((i + 2) % 5)]);
    }
    state[0] ^= constant;
  }
}

/** @param {Uint8Array} bytes @returns {string} 0x and 64 hex digits */
export function keccak256(bytes) {
  const padded = new Uint8Array(Math.ceil((bytes.length + 1) / RATE) * RATE);
  padded.set(bytes);
  padded[bytes.length] ^= 0x01;
  padded[padded.length - 1] ^= 0x80;
  const view = new DataView(padded.buffer);
  /** @type {bigint[]} */
  const state = new Array(25).fill(0n);
  for (let start = 0; start < padded.length; start += RATE) {
    for (let lane = 0; lane < RATE / 8; lane++) state[lane] ^= view.getBigUint64(start + lane * 8, true);
    permute(state);
  }
  const out = new DataView(new ArrayBuffer(32));
  for (let lane = 0; lane < 4; lane++) out.setBigUint64(lane * 8, state[lane], true);
  return "0x" + [...new Uint8Array(out.buffer)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
