// Opens exports in a browser, each in the page that is made for it, and prints the totals that the page has as one JSON object.
//
// node browser.mjs CHROMIUM DIRECTORY SPEEDSCOPE DH_VIEW: DIRECTORY has the exports; SPEEDSCOPE and DH_VIEW are pages; the last may be "-".

import { resolve } from 'node:path';
import puppeteer from 'puppeteer-core';

const [chromium, directory, speedscope, dhView] = process.argv.slice(2);
const file = name => resolve(directory, name);
const browser = await puppeteer.launch({
  executablePath: chromium,
  args: ['--no-sandbox', '--disable-gpu', '--allow-file-access-from-files'],
});
const problems = [];

async function open(path) {
  const page = await browser.newPage();
  await page.setViewport({ width: 1400, height: 900 });
  page.on('pageerror', error => problems.push(`${path}: ${error.message}`));
  page.on('dialog', dialog => { problems.push(`${path}: ${dialog.message()}`); dialog.dismiss(); });
  await page.goto(`file://${path}`);
  return page;
}

// What speedscope makes of a file is what it exports again: the file's text is caught on its way to the download.
async function inSpeedscope(name) {
  const page = await open(speedscope);
  await page.evaluate(() => {
    URL.createObjectURL = blob => { blob.text().then(text => { window.exported = text; }); return 'about:blank'; };
    HTMLAnchorElement.prototype.click = () => {};
  });
  const [chooser] = await Promise.all([
    page.waitForFileChooser(),
    page.keyboard.down('Control').then(() => page.keyboard.press('o')),
  ]);
  await page.keyboard.up('Control');
  await chooser.accept([file(name)]);
  await page.waitForFunction(() => document.title !== 'speedscope', { timeout: 60000 });
  await page.screenshot({ path: file(`${name}.png`) });
  await page.keyboard.down('Control');
  await page.keyboard.press('s');
  await page.keyboard.up('Control');
  await page.waitForFunction(() => window.exported, { timeout: 60000 });
  const { profiles } = JSON.parse(await page.evaluate(() => window.exported));
  await page.close();
  return Object.fromEntries(profiles.map(profile => [profile.name, profile.endValue - profile.startValue]));
}

// The root of the tree that dh_view shows: bytes and blocks by moment.
async function inDhView(name) {
  const page = await open(dhView);
  const input = await page.waitForSelector('input[type=file]');
  await input.uploadFile(file(name));
  await page.waitForFunction(() => /PP 1\/|Error/.test(document.body.innerText), { timeout: 60000 });
  const text = await page.evaluate(() => document.body.innerText);
  await page.screenshot({ path: file(`${name}.png`) });
  const totals = {};
  for (const moment of ['Total', 'At t-gmax', 'At t-end']) {
    const found = text.match(new RegExp(`${moment}:\\s+([\\d,]+) bytes[^\\n]*? in ([\\d,]+) blocks`));
    if (!found) continue;
    totals[`${moment} bytes`] = Number(found[1].replaceAll(',', ''));
    totals[`${moment} blocks`] = Number(found[2].replaceAll(',', ''));
  }
  await page.close();
  return totals;
}

// The flame graph: what it says of everything, how wide a frame gets by a click, and what a search finds.
async function flame(name) {
  const page = await open(file(name));
  const result = await page.evaluate(() => {
    const frames = [...document.querySelectorAll('#flames g')];
    const width = frame => Number(frame.querySelector('rect').getAttribute('width'));
    const narrow = frames.find(frame => width(frame) < 300);
    narrow?.dispatchEvent(new MouseEvent('click', { bubbles: true }));
    const zoomed = narrow && width(narrow);
    document.getElementById('reset').dispatchEvent(new MouseEvent('click'));
    window.prompt = () => frames[1].querySelector('title').textContent.split('\n')[0];
    document.getElementById('search').dispatchEvent(new MouseEvent('click'));
    return {
      total: Number(frames[0].dataset.v),
      zooms: !narrow || zoomed > 1000 && width(narrow) < 300 ? 1 : 0,
      finds: /[1-9]\d* frames, .* %/.test(document.getElementById('reported').textContent) ? 1 : 0,
    };
  });
  await page.screenshot({ path: file(`${name}.png`) });
  await page.close();
  return result;
}

const seen = {};
try {
  if (speedscope !== '-') {
    seen.speedscope = await inSpeedscope('app.speedscope.json');
    seen.heapprofile = await inSpeedscope('app.heapprofile');
  }
  if (dhView !== '-') seen.dhat = await inDhView('app.dhat.json');
  seen.flame = await flame('app.svg');
} finally {
  await browser.close();
}
console.log(JSON.stringify({ ...seen, problems }));
