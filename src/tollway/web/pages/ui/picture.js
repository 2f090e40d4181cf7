// A picture in the response of an API: a PNG, drawn on a canvas. The policy of the pages allows no picture from elsewhere, and this asks for none: the bytes are here.

const SIDE_MAX = 2048;
const SIGNATURE = [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a];
const HEAD_BYTES = 24;

/** The picture; null for bytes that are no PNG of at most 2,048 pixels a side: a small file can hold a huge picture. @param {Blob} blob @param {string} label */
export async function drawPicture(blob, label) {
  const head = new DataView(await blob.slice(0, HEAD_BYTES).arrayBuffer());
  if (head.byteLength < HEAD_BYTES || SIGNATURE.some((byte, position) => head.getUint8(position) !== byte)) return null;
  const width = head.getUint32(16);
  const height = head.getUint32(20);
  if (!width || !height || width > SIDE_MAX || height > SIDE_MAX) return null;
  const bitmap = await createImageBitmap(blob).catch(() => null);
  if (!bitmap) return null;
  const canvas = document.createElement("canvas");
  canvas.className = "answer-picture";
  canvas.width = width;
  canvas.height = height;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  canvas.getContext("2d")?.drawImage(bitmap, 0, 0);
  bitmap.close();
  return canvas;
}
