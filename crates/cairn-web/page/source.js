// The text of a source file, in front of the page.

import { countText, element, nameElement } from './text.js';
import { byId } from './main.js';

/** Lines that are shown around the chosen one. */
const AROUND = 1500;
/** Characters of a line; the rest is left out. */
const MOST_COLUMNS = 1000;

export class Source {
  constructor(api) {
    this.api = api;
    this.box = byId('source-box');
    byId('source-close').addEventListener('click', () => this.box.close());
    // A click outside of the dialog closes it.
    this.box.addEventListener('click', (event) => event.target === this.box && this.box.close());
  }

  async show({ file, line }) {
    byId('source-name').replaceChildren(nameElement(line ? `${file}:${line}` : file));
    byId('source-note').textContent = 'Looking for it …';
    byId('source-text').replaceChildren();
    if (!this.box.open) this.box.showModal();
    try {
      this.fill(await this.api.source(file), line);
    } catch (error) {
      byId('source-note').textContent = `It cannot be shown: ${error.message}.`;
    }
  }

  fill({ path, text, is_cut: isCut }, line) {
    const lines = text.split('\n');
    if (lines.at(-1) === '') lines.pop();
    const first = Math.max(0, Math.min(line || 1, lines.length) - 1 - AROUND);
    const shown = lines.slice(first, first + 2 * AROUND + 1);
    const part = shown.length < lines.length ? `; lines ${countText(first + 1)} to ${countText(first + shown.length)} of ${countText(lines.length)}` : '';
    byId('source-note').textContent = `${path}${part}${isCut ? '; the file goes on' : ''}`;
    const rows = shown.map((text, i) => {
      const number = first + i + 1;
      const cut = text.length > MOST_COLUMNS ? `${text.slice(0, MOST_COLUMNS)}…` : text;
      return element('li', { value: number, class: number === line ? 'here' : null, 'aria-current': number === line ? 'true' : null }, element('code', {}, cut.replace(/\r$/, '')));
    });
    byId('source-text').replaceChildren(...rows);
    (rows.find((row) => row.className === 'here') || rows[0])?.scrollIntoView({ block: 'center' });
    if (line > lines.length) byId('source-note').textContent += `; it has no line ${countText(line)}: is it of another version?`;
  }
}
