// A page that is a file and holds its content.

import { unpack, parse } from './content.js';
import { METRICS } from './model.js';
import { readState } from './state.js';
import { Page, byId } from './main.js';

async function start() {
  const box = byId('content');
  try {
    const began = performance.now();
    const bytes = await unpack(box.textContent.trim());
    box.remove();
    // The larger part, which only ranges of time need, is loaded after the first picture, unless the first picture is of a range.
    const content = parse(bytes, async (of) => {
      const later = byId('slices');
      of.addColumns(await unpack(later.textContent.trim()));
      later.remove();
    });
    if (readState().range) await content.needSlices();
    const parsed = performance.now();
    const page = new Page(content);
    // Durations, for the tests.
    document.documentElement.dataset.parsedMillis = (parsed - began).toFixed(1);
    document.documentElement.dataset.drawnMillis = (performance.now() - parsed).toFixed(1);
    document.documentElement.dataset.pictureMillis = performance.now().toFixed(1);
    globalThis.cairnPage = page;
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    await content.needSlices();
    page.model.prepare();
    page.model.heldAtEnds();
    for (const metric of METRICS) if (metric.slice) page.model.column(metric.slice);
    document.documentElement.dataset.ready = '1';
  } catch (error) {
    byId('failure').hidden = false;
    byId('failure').textContent = `This page cannot be shown: ${error.message}. A browser of 2023 or later is needed; make the page again if it was cut.`;
    throw error;
  }
}

start();
