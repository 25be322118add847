// Unpacks the content of the page: numbers and names. docs/book/reference/page.md describes the format.

/** The bytes of the page's content. */
export async function unpack(base64) {
  const packed = Uint8Array.fromBase64 ? Uint8Array.fromBase64(base64) : fromBase64(base64);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function fromBase64(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/**
 * Parses the content: its JSON object, with `column(name)` for the numbers behind it, and `addColumns` for the columns that
 * `loadSlices` loads later, once.
 */
export function parse(bytes, loadSlices, schema = 'cairn.page/1') {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const content = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  if (content.schema !== schema) throw new Error(`This page cannot read ${content.schema}`);
  const parts = [bytes.subarray(4 + length)];
  content.addColumns = (more) => parts.push(more);
  let loading = null;
  content.needSlices = () => (loading ??= loadSlices(content));
  content.column = (name, Kind = Float64Array) => {
    const { part, at, count } = content.columns[name];
    if (Kind === Uint32Array) return decodeSmall(parts[part], at, new Uint32Array(count));
    const values = decodeLarge(parts[part], at, new Float64Array(count));
    return name === 'slice_grown_bytes' ? signed(values) : values;
  };
  return content;
}

/**
 * Decodes seven bits of each byte, the lowest first. There is one function for each kind of array: browsers run one that is used
 * with several kinds three times as long.
 */
function decodeSmall(bytes, at, values) {
  for (let i = 0; i < values.length; i++) {
    let byte = bytes[at++];
    let value = byte & 127;
    for (let shift = 7; byte > 127 && shift < 35; shift += 7) {
      byte = bytes[at++];
      value |= (byte & 127) << shift;
    }
    values[i] = value;
  }
  return values;
}

/** Multiplied, because shifts end at 32 bits. */
function decodeLarge(bytes, at, values) {
  for (let i = 0; i < values.length; i++) {
    let byte = bytes[at++];
    let value = byte & 127;
    for (let unit = 128; byte > 127; unit *= 128) {
      byte = bytes[at++];
      value += (byte & 127) * unit;
    }
    values[i] = value;
  }
  return values;
}

/** The sign is in the lowest bit. */
function signed(values) {
  for (let i = 0; i < values.length; i++) {
    const half = Math.floor(values[i] / 2);
    values[i] = half * 2 === values[i] ? half : -half;
  }
  return values;
}
