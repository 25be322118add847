// Formats numbers, and makes elements that hold texts.

const BYTE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
const TIME_UNITS = [[1, 'ns'], [1e3, 'µs'], [1e6, 'ms'], [1e9, 's']];

export function bytesText(bytes) {
  let unit = 0;
  let size = bytes;
  while (Math.abs(size) >= 1000 && unit < BYTE_UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit ? threeDigits(size) : size} ${BYTE_UNITS[unit]}`;
}

/** Written by hand: the first call of the browser's own function takes longer than the first picture. */
export function countText(count) {
  return String(count).replace(/\B(?=(\d{3})+$)/g, ',');
}

export function timeText(nanos) {
  if (nanos >= 60e9) {
    const seconds = Math.floor(nanos / 1e9);
    const minutes = Math.floor(seconds / 60);
    const rest = `${String(seconds % 60).padStart(2, '0')} s`;
    return minutes < 60 ? `${minutes} min ${rest}` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  }
  let best = TIME_UNITS[0];
  for (const unit of TIME_UNITS) if (nanos >= unit[0]) best = unit;
  return `${threeDigits(nanos / best[0])} ${best[1]}`;
}

export function shareText(part, whole) {
  if (!whole) return '';
  const percent = (100 * part) / whole;
  if (part === 0) return '0 %';
  return percent >= 99.95 ? '100 %' : percent > 0 && percent < 0.01 ? '< 0.01 %' : `${percent.toPrecision(3)} %`;
}

function threeDigits(number) {
  if (number === 0) return '0';
  const size = Math.abs(number);
  return number.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

/** Makes an element with attributes and children; texts are never parsed as markup. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'on') for (const [event, handler] of Object.entries(value)) made.addEventListener(event, handler);
    else if (value === true) made.setAttribute(key, '');
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

/** An element for a name, whose direction of writing does not affect other text. */
export function nameElement(text) {
  return element('bdi', {}, text);
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Not allowed from a file in some browsers.
    const area = element('textarea', { class: 'away', 'aria-hidden': 'true' });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
}
