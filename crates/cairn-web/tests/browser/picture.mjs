// Takes the picture of the page that the README shows: node picture.mjs DIRECTORY FILE
//
// `DIRECTORY` holds `orders.html`. puppeteer-core is searched for in PUPPETEER_FROM, the browser is CHROMIUM.

import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const [directory, file] = process.argv.slice(2);
const from = process.env.PUPPETEER_FROM ? pathToFileURL(resolve(process.env.PUPPETEER_FROM, 'x')) : import.meta.url;
const loaded = await import(pathToFileURL(createRequire(from).resolve('puppeteer-core')));
const puppeteer = loaded.default ?? loaded;

const browser = await puppeteer.launch({ executablePath: process.env.CHROMIUM || '/usr/bin/chromium', args: ['--no-sandbox'] });
try {
  const page = await browser.newPage();
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'light' }]);
  await page.setViewport({ width: 1200, height: 720 });
  await page.goto(pathToFileURL(join(resolve(directory), 'orders.html')));
  await page.waitForSelector('html[data-ready]', { timeout: 120_000 });
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  await page.screenshot({ path: file, type: 'webp', quality: 80 });
} finally {
  await browser.close();
}
