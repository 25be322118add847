
"use strict";
// Zoom: a click makes a frame as wide as the page. Search: by the button, or Ctrl-F, or /.
const flames = [...document.querySelectorAll("#flames svg")].map(element => ({
  element,
  text: element.querySelector("text"),
  name: element.querySelector("title").textContent,
  start: Number(element.dataset.x),
  share: Number(element.dataset.w),
  level: Number(element.dataset.l),
  value: Number(element.dataset.v),
}));
const CHARACTER = 7.2;
const root = document.documentElement, box = document.getElementById("flames");
const reported = document.getElementById("description"), reset = document.getElementById("reset");
const whole = Number(root.dataset.whole);

// A title is the name, where it is, and the numbers, each on a line.
const label = flame => flame.name.split("\n")[0];

function cut(name, width) {
  const characters = Math.floor((width - 6) / CHARACTER);
  if (characters < 3) return "";
  return name.length <= characters ? name : name.slice(0, characters - 1) + "…";
}

let zoomed = flames[0];
// Fits the picture to the window: places across are parts of the whole, so only the names change.
root.setAttribute("width", "100%");
addEventListener("resize", () => {
  fitHeading();
  zoom(zoomed);
});

// The heading ends in front of the button. Its first child is the tooltip, which has all of it.
const heading = document.querySelector(".title"), command = heading.querySelector("title").textContent;
function fitHeading() {
  const HEADING_CHARACTER = 9.7, BUTTON = 90;
  const room = Math.max(8, Math.floor(((root.clientWidth || 1200) - BUTTON) / HEADING_CHARACTER));
  heading.lastChild.textContent = command.length <= room ? command : command.slice(0, room - 1) + "…";
}

function zoom(to) {
  zoomed = to;
  const inner = box.getBoundingClientRect().width || 1180;
  const end = to.start + to.share, slack = 1e-7;
  for (const flame of flames) {
    const holds = flame.level <= to.level && flame.start <= to.start + slack && flame.start + flame.share >= end - slack;
    const inside = flame.level > to.level && flame.start >= to.start - slack && flame.start + flame.share <= end + slack;
    flame.element.style.display = holds || inside ? "" : "none";
    flame.element.classList.toggle("outer", holds && flame !== to);
    if (!holds && !inside) continue;
    const x = holds ? 0 : (flame.start - to.start) / to.share;
    const width = holds ? 1 : flame.share / to.share;
    flame.element.setAttribute("x", (100 * x).toFixed(4) + "%");
    flame.element.setAttribute("width", (100 * width).toFixed(4) + "%");
    flame.text.textContent = cut(label(flame), width * inner);
  }
  reset.textContent = to === flames[0] ? "" : "zoom out";
}

function search(wanted) {
  const lower = wanted ? wanted.toLowerCase() : "";
  const found = flames.filter(flame => flame !== flames[0] && lower && flame.name.toLowerCase().includes(lower));
  const set = new Set(found);
  for (const flame of flames) flame.element.classList.toggle("found", set.has(flame));
  // What lies above something found is part of it and does not count twice.
  let sum = 0, end = -1;
  for (const flame of found.sort((a, b) => a.start - b.start || a.level - b.level)) {
    if (flame.start >= end - 1e-9) {
      sum += flame.value;
      end = flame.start + flame.share;
    }
  }
  reported.textContent = lower ? `"${wanted}": ${found.length} frames, ${(100 * sum / (whole || 1)).toFixed(1)} %` : "";
}

const ask = () => search(prompt("Functions, files or modules that hold this text:", ""));
document.getElementById("search").addEventListener("click", ask);
reset.addEventListener("click", () => zoom(flames[0]));
addEventListener("keydown", event => {
  if (event.key === "/" || (event.ctrlKey && event.key === "f")) { event.preventDefault(); ask(); }
  if (event.key === "Escape") { search(""); zoom(flames[0]); }
});
for (const flame of flames) {
  flame.element.addEventListener("click", () => zoom(flame));
  flame.element.addEventListener("mouseenter", () => { reported.textContent = flame.name.split("\n").join("  "); });
}
fitHeading();
zoom(zoomed);
// A picture that is higher than the window begins where its stacks do.
scrollTo(0, Number(root.getAttribute("height")));
