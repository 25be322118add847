#!/bin/sh
# Opens a flame graph in headless chromium, clicks, searches, and says what came of it.
#
#   flame.sh CAIRN RECORDING
#
# Not part of the tests, which need no browser. A script at the end of a copy of the file does what a reader does, and writes
# what it sees into the page; the page is then printed. Exit code 0 when all is as it should be.
set -eu
cairn=$1 recording=$2
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
"$cairn" flame "$recording" -o "$directory/heap.svg"
cat > "$directory/reader.js" <<'SCRIPT'
<script><![CDATA[
const reported_of = [];
const check = (what, holds) => reported_of.push((holds ? "ok: " : "FAILED: ") + what);
try {
  const all = [...document.querySelectorAll("#flames g")];
  const width = element => Number(element.querySelector("rect").getAttribute("width"));
  const name = element => element.querySelector("title").textContent.split("\n")[0];
  const press = (key, more) => dispatchEvent(new KeyboardEvent("keydown", { key, ...more }));
  const narrow = all.find(element => width(element) < 600 && width(element) > 5);
  check("frames are drawn", all.length > 3 && narrow !== undefined);
  const before = width(narrow);
  narrow.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  check("a click makes a frame as wide as the page", width(narrow) > 1100);
  check("what is beside it is gone", all.some(element => element.style.display === "none"));
  check("a way back is offered", document.getElementById("reset").textContent !== "");
  document.getElementById("reset").dispatchEvent(new MouseEvent("click", { bubbles: true }));
  check("the way back leads back", Math.abs(width(narrow) - before) < 0.1);
  check("all frames are there again", all.every(element => element.style.display !== "none"));
  let asked = 0;
  window.prompt = () => { asked += 1; return name(narrow).toUpperCase(); };
  press("/");
  check("/ asks", asked === 1);
  check("a search marks what it finds, in any case of letters", narrow.classList.contains("found"));
  check("and says how much it is", /frames, [0-9.]+ %/.test(document.getElementById("description").textContent));
  press("f", { ctrlKey: true });
  document.getElementById("search").dispatchEvent(new MouseEvent("click", { bubbles: true }));
  check("so do Ctrl-F and the button", asked === 3);
  press("Escape");
  check("Escape goes back", document.querySelector("#flames g.found") === null);
  narrow.dispatchEvent(new MouseEvent("mouseenter"));
  check("a frame under the pointer is described", document.getElementById("description").textContent.includes(name(narrow)));
} catch (error) {
  reported_of.push("FAILED: " + error);
}
document.title = "reader";
const result = document.createElementNS("http://www.w3.org/2000/svg", "desc");
result.textContent = "\n" + reported_of.join("\n") + "\nend of it\n";
document.documentElement.append(result);
]]></script>
</svg>
SCRIPT
sed '$ s,</svg>,,' "$directory/heap.svg" > "$directory/page.svg"
cat "$directory/reader.js" >> "$directory/page.svg"
chromium --headless --no-sandbox --disable-gpu --user-data-dir="$directory/profile" --virtual-time-budget=5000 \
    --dump-dom "file://$directory/page.svg" > "$directory/dom" 2> "$directory/complaints"
grep -E '^(ok|FAILED): ' "$directory/dom" || { cat "$directory/complaints"; exit 1; }
grep -q '^end of it' "$directory/dom"
! grep -q '^FAILED: ' "$directory/dom"
