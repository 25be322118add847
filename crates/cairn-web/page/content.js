// From the text that the page carries to numbers and names. docs/page.md tells what there is.

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
 * The content: its JSON object, with `column(name)` for the numbers behind it, and `addColumns` for those that come later, which
 * `loadSlices` brings, once.
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
    const place = content.columns[name];
    return decode(parts[place.part], place.at, new Kind(place.count), name === 'slice_grown_bytes');
  };
  return content;
}

/** Seven bits to a byte, the lowest first. Multiplied, because shifts end at 32 bits. */
function decode(bytes, at, values, isSigned) {
  for (let i = 0; i < values.length; i++) {
    let byte = bytes[at++];
    let value = byte;
    if (byte > 127) {
      value = byte & 127;
      let unit = 128;
      do {
        byte = bytes[at++];
        value += (byte & 127) * unit;
        unit *= 128;
      } while (byte > 127);
    }
    values[i] = isSigned ? (value % 2 ? -(value - 1) / 2 : value / 2) : value;
  }
  return values;
}
