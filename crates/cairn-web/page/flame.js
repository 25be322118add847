// The flame graph and the icicle: a tree of calls on a canvas.
//
// Only branches at least half a pixel wide are visited, so the cost of drawing depends on the picture, not on the recording.
// The tree from the allocations outwards is built on demand: a branch is merged when it is wide enough to be seen.

import { bytesText, countText, shareText } from './text.js';
import { mixed, ownerColours } from './owners.js';
import { hashOf } from './model.js';

const ROW = 20;
/** Width in pixels above which rows are higher, for screens that are seen from further away. */
const LARGE = { from: 2400, row: 26 };
const LEAST_WIDTH = 0.5;
/** How far the shades of an owner's functions are apart: enough to tell two beside each other from one. */
const SHADES = 6;
const SHADE = 0.035;
/** How much of the page's colour is in calls that a search did not find. */
const DIM = 0.72;
/** Width of the stripe of an owner, and of the calls that have one. */
const STRIPE = { width: 4, least: 10 };
/** Height of the line for folded frames. */
const FOLD = 2;
const FONT = 'ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace';

/** A branch: a function and how it was reached. */
class Branch {
  constructor(parent, functionNumber, call, value, own) {
    this.parent = parent;
    this.level = parent ? parent.level + 1 : 0;
    this.functionNumber = functionNumber;
    /** The call it is, or the costliest one of the calls that it merges. */
    this.call = call;
    this.value = value;
    this.own = own;
    this.children = null;
    /** From the allocations outwards: the calls that it merges, and where the paths through them ended. */
    this.places = null;
  }
}

/** From `main` inwards. */
class Inwards {
  constructor(model, own, totals) {
    Object.assign(this, { model, own, totals });
    this.root = new Branch(null, 0, 0, totals[0], own[0]);
  }

  children(branch) {
    if (branch.children) return branch.children;
    const { model, own, totals } = this;
    const children = [];
    for (let call = model.firstChild[branch.call]; call >= 0; call = model.nextSibling[call]) {
      if (totals[call] > 0) children.push(new Branch(branch, model.functions[call], call, totals[call], own[call]));
    }
    children.sort((a, b) => b.value - a.value || a.call - b.call);
    branch.children = children;
    return children;
  }
}

/** From the allocations outwards. */
class Outwards {
  constructor(model, own, totals) {
    Object.assign(this, { model, own });
    this.root = new Branch(null, 0, 0, totals[0], 0);
    const ends = [];
    for (let call = 1; call < model.calls; call++) if (own[call] > 0) ends.push(call, call);
    this.root.places = ends;
  }

  children(branch) {
    if (branch.children) return branch.children;
    const { model, own } = this;
    const isRoot = branch.parent === null;
    const byFunction = new Map();
    const children = [];
    const heaviest = [];
    for (let i = 0; i < branch.places.length; i += 2) {
      const call = isRoot ? branch.places[i] : model.parents[branch.places[i]];
      if (call === 0) continue;
      const end = branch.places[i + 1];
      const f = model.functions[call];
      let index = byFunction.get(f);
      if (index === undefined) {
        index = children.length;
        byFunction.set(f, index);
        const child = new Branch(branch, f, call, 0, 0);
        child.places = [];
        children.push(child);
        heaviest.push(0);
      }
      const child = children[index];
      child.places.push(call, end);
      child.value += own[end];
      if (model.parents[call] === 0) child.own += own[end];
      if (own[end] > heaviest[index]) {
        heaviest[index] = own[end];
        child.call = call;
      }
    }
    children.sort((a, b) => b.value - a.value || a.functionNumber - b.functionNumber);
    branch.children = children;
    return children;
  }
}

export class Flame {
  /** `scroller` scrolls, `spacer` gives it its height, `canvas` stays in place. */
  constructor({ scroller, spacer, canvas, onSelect, onZoom, onMenu, onRow }) {
    Object.assign(this, { scroller, spacer, canvas, onSelect, onZoom, onMenu, onRow });
    this.context = canvas.getContext('2d', { alpha: false });
    this.row = ROW;
    this.isFlame = false;
    this.found = null;
    this.rows = [];
    this.colours = new Map();
    this.textVariable = '--owner-text';
    /** Calls have a stripe in the colour of `stripe(branch)`, and a line where `folded(branch)` frames are left out. */
    this.hasStripes = false;
    this.offset = 0;
    /** Branches that are a smaller part of everything are not drawn. */
    this.leastShare = 0;
    scroller.addEventListener('scroll', () => {
      this.offset = scroller.scrollTop;
      this.draw();
    });
    canvas.addEventListener('mousemove', (event) => this.hover(event));
    canvas.addEventListener('mouseleave', () => this.hover(null));
    canvas.addEventListener('click', (event) => this.click(event));
    canvas.addEventListener('contextmenu', (event) => this.menu(event));
    canvas.addEventListener('keydown', (event) => this.key(event));
  }

  /** Shows another tree. Zoom and selection stay, as far as the new tree has them. */
  show(model, own, totals, metric, isInverted) {
    const zoomed = this.zoomed ? this.path(this.zoomed) : [];
    const selected = this.selected ? this.path(this.selected) : null;
    const isOther = this.isInverted !== isInverted;
    if (this.model !== model) this.colours.clear();
    Object.assign(this, { model, metric, isInverted });
    this.tree = isInverted ? new Outwards(model, own, totals) : new Inwards(model, own, totals);
    this.zoomed = isOther ? this.tree.root : this.find(zoomed, true);
    this.selected = selected && !isOther ? this.find(selected, false) : null;
    this.hovered = null;
    this.foundCalls = this.found && model.foundCalls(this.found);
    this.scrollerHeight = 0;
    this.layout();
  }

  /** Reads the size from the style. Only here: reading it after each change makes the browser lay out the page. */
  measure() {
    const style = getComputedStyle(this.scroller);
    this.width = this.scroller.clientWidth;
    this.least = parseFloat(style.minHeight) - 2;
    this.most = parseFloat(style.maxHeight) - 2;
    this.scale = window.devicePixelRatio || 1;
    const row = this.width > LARGE.from ? LARGE.row : ROW;
    if (row !== this.row) this.charWidth = 0;
    this.row = row;
    this.scrollerHeight = 0;
  }

  /** The keys of the functions from the root to a branch. */
  path(branch) {
    const path = [];
    for (let at = branch; at.parent; at = at.parent) path.push(this.model.key(at.functionNumber));
    return path.reverse();
  }

  /** The branch at the end of a path; else the last one on the way if `isNearEnough`, or null. */
  find(path, isNearEnough) {
    let branch = this.tree.root;
    for (const key of path) {
      const next = this.tree.children(branch).find((child) => this.model.key(child.functionNumber) === key);
      if (!next) return isNearEnough ? branch : null;
      branch = next;
    }
    return branch;
  }

  zoom(branch) {
    this.zoomed = branch;
    this.layout();
    this.onZoom(branch);
  }

  select(branch) {
    this.selected = branch;
    this.draw();
    this.onSelect(branch);
  }

  mark(found) {
    this.found = found;
    this.foundCalls = found && this.model.foundCalls(found);
    this.draw();
  }

  /** Places all branches that can be seen: rows of [x, width, branch]. */
  layout() {
    if (!this.tree) return;
    const { width } = this;
    const rows = [];
    const row = (level) => rows[level] || (rows[level] = { x: [], width: [], branches: [] });
    const place = (branch, x, w) => {
      const there = row(branch.level);
      there.x.push(x);
      there.width.push(w);
      there.branches.push(branch);
    };
    for (let outer = this.zoomed.parent; outer; outer = outer.parent) place(outer, 0, width);
    const scale = this.zoomed.value > 0 ? width / this.zoomed.value : 0;
    const least = Math.max(LEAST_WIDTH / (scale || 1), this.leastShare * this.tree.root.value);
    const open = [this.zoomed];
    const lefts = [0];
    while (open.length) {
      const branch = open.pop();
      let left = lefts.pop();
      place(branch, left, branch.value * scale);
      // Rows are filled from left to right: the last child is put down first, and taken up last.
      const children = this.tree.children(branch);
      let count = 0;
      while (count < children.length && children[count].value * scale > 0 && children[count].value >= least) {
        left += children[count].value * scale;
        count += 1;
      }
      while (count > 0) {
        count -= 1;
        left -= children[count].value * scale;
        open.push(children[count]);
        lefts.push(left);
      }
    }
    this.rows = rows;
    this.fit(rows.length * this.row);
    this.draw();
  }

  /** Makes room for a tree of this height, up to the limit of the style. A zoomed tree that is lower leaves the height, so that nothing jumps. */
  fit(height) {
    if (this.height !== height) this.spacer.style.height = `${height}px`;
    this.height = height;
    if (height > this.scrollerHeight) {
      this.scrollerHeight = height;
      this.scroller.style.height = `${height + 2}px`;
    }
    this.viewHeight = Math.max(this.least, Math.min(this.most, this.scrollerHeight));
    const furthest = Math.max(0, height - this.viewHeight);
    const offset = this.isFlame ? furthest : Math.min(this.offset, furthest);
    if (offset !== this.offset) this.scroller.scrollTop = offset;
    this.offset = offset;
    const pixels = [Math.round(this.width * this.scale), Math.round(this.viewHeight * this.scale)];
    if (this.canvas.width !== pixels[0] || this.canvas.height !== pixels[1]) {
      [this.canvas.width, this.canvas.height] = pixels;
      this.canvas.style.width = `${this.width}px`;
      this.canvas.style.height = `${this.viewHeight}px`;
    }
  }

  theme() {
    const style = getComputedStyle(this.canvas);
    const colour = (name) => style.getPropertyValue(name).trim();
    this.isDark = colour('--is-dark') === '1';
    this.paint = { page: colour('--page'), text: colour(this.textVariable), dimText: colour('--text'), edge: colour('--text'), found: colour('--found'), other: colour('--other'), owners: ownerColours(style) };
    this.colours.clear();
  }

  colour(branch, isDim) {
    const { model } = this;
    const f = branch.functionNumber;
    const owner = branch.parent ? model.owner(branch.call) : 0;
    const key = (f * 1024 + owner) * 2 + (isDim ? 1 : 0);
    let colour = this.colours.get(key);
    if (!colour) {
      const name = model.owners.classOf(owner);
      const shade = (hashOf(model.names[f]) % SHADES) * SHADE;
      const { owners, other, page } = this.paint;
      const plain = name && model.kinds[f] !== 2 ? owners[name] : other;
      // Towards white, which the dark text on it gains by.
      colour = isDim ? mixed(plain, DIM, page) : mixed(plain, shade, '#ffffff');
      this.colours.set(key, colour);
    }
    return colour;
  }

  /** The top of a level's row, in the canvas. */
  top(level) {
    const { offset } = this;
    return this.isFlame ? Math.max(this.height, this.viewHeight) - (level + 1) * this.row - offset : level * this.row - offset;
  }

  draw() {
    if (!this.tree) return;
    if (!this.paint) this.theme();
    const { context, found, foundCalls, paint } = this;
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    context.direction = 'ltr';
    context.fillStyle = paint.page;
    context.fillRect(0, 0, this.width, this.viewHeight);
    context.font = `${Math.round(this.row * 0.6)}px ${FONT}`;
    context.textBaseline = 'middle';
    if (!this.charWidth) this.charWidth = context.measureText('0').width;
    const labels = [];
    for (let level = 0; level < this.rows.length; level++) {
      const y = this.top(level);
      if (y + this.row < 0 || y > this.viewHeight || !this.rows[level]) continue;
      const { x, width, branches } = this.rows[level];
      for (let i = 0; i < x.length; i++) {
        const branch = branches[i];
        const isFound = found && (found[branch.functionNumber] || foundCalls[branch.call]);
        context.fillStyle = isFound ? paint.found : this.colour(branch, found && !isFound);
        // Without the gap where there is none to spare.
        context.fillRect(x[i], y, width[i] > 2 ? width[i] - 1 : width[i], this.row - 1);
        if (this.hasStripes && width[i] > STRIPE.least) this.drawStripe(branch, x[i], y, width[i]);
        if (width[i] > 30) labels.push(branch, x[i], y, width[i], found && !isFound);
      }
    }
    const start = this.hasStripes ? STRIPE.width + 4 : 4;
    for (let i = 0; i < labels.length; i += 5) {
      context.fillStyle = labels[i + 4] ? paint.dimText : paint.text;
      const room = Math.floor((labels[i + 3] - start - 4) / this.charWidth);
      const name = this.label(labels[i]);
      const text = name.length <= room ? name : room > 3 ? `${name.slice(0, room - 1)}…` : '';
      // A name in a wider script than Latin must not run into the next one.
      if (text) context.fillText(text, labels[i + 1] + start, labels[i + 2] + this.row / 2, labels[i + 3] - start - 2);
    }
    this.outline(this.hovered, 1);
    this.outline(this.selected, 2);
  }

  drawStripe(branch, x, y, width) {
    const { context, paint } = this;
    const colour = this.stripe(branch);
    if (colour) {
      context.fillStyle = colour;
      context.fillRect(x, y, STRIPE.width, this.row - 1);
    }
    if (this.folded(branch)) {
      context.fillStyle = paint.edge;
      context.globalAlpha = 0.55;
      // On the side of the caller.
      const isAbove = this.isFlame === this.isInverted;
      context.fillRect(x, isAbove ? y : y + this.row - 1 - FOLD, width - 1, FOLD);
      context.globalAlpha = 1;
    }
  }

  label(branch) {
    return branch.parent ? this.model.callName(branch.call) : 'everything';
  }

  outline(branch, thickness) {
    const place = branch && this.placeOf(branch);
    if (!place) return;
    this.context.strokeStyle = this.paint.edge;
    this.context.lineWidth = thickness;
    const inset = thickness / 2;
    this.context.strokeRect(place.x + inset, place.y + inset, Math.max(1, place.width - 1 - thickness), this.row - 1 - thickness);
  }

  placeOf(branch) {
    const row = this.rows[branch.level];
    const index = row ? row.branches.indexOf(branch) : -1;
    return index < 0 ? null : { x: row.x[index], width: row.width[index], y: this.top(branch.level) };
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const y = event.clientY - box.top;
    const x = event.clientX - box.left;
    const top = this.top(0);
    const level = Math.floor((this.isFlame ? top + this.row - y : y - top) / this.row);
    const row = this.rows[level];
    if (!row) return null;
    let low = 0;
    let high = row.x.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (row.x[middle] <= x) low = middle;
      else high = middle - 1;
    }
    return x < row.x[low] + row.width[low] ? row.branches[low] : null;
  }

  hover(event) {
    const branch = event && this.at(event);
    if (branch === this.hovered) return;
    this.hovered = branch;
    this.canvas.title = branch ? `${this.label(branch)}\n${this.describe(branch)}` : '';
    this.draw();
  }

  click(event) {
    const branch = this.at(event);
    if (!branch || this.openRow(branch)) return;
    this.selected = branch;
    this.zoom(branch);
    this.onSelect(branch);
  }

  /** Opens a row of folded calls. */
  openRow(branch) {
    if (!this.onRow || !branch.parent || !this.model.isRow(branch.call)) return false;
    this.onRow(branch);
    return true;
  }

  menu(event) {
    if (!this.onMenu) return;
    // A key has no place of its own.
    const isKey = event.button !== 2;
    const branch = isKey ? this.selected || this.zoomed : this.at(event);
    if (!branch) return;
    event.preventDefault();
    this.select(branch);
    const place = this.placeOf(branch);
    const box = this.canvas.getBoundingClientRect();
    if (isKey && place) this.onMenu(branch, box.left + Math.max(0, place.x) + 20, box.top + place.y + this.row);
    else this.onMenu(branch, event.clientX, event.clientY);
  }

  describe(branch) {
    const text = this.metric.isBytes ? bytesText : countText;
    const share = shareText(branch.value, this.tree.root.value);
    const own = branch.own > 0 ? `, ${text(branch.own)} by itself` : '';
    return `${text(branch.value)}${share ? `, ${share}` : ''}${own}`;
  }

  key(event) {
    const branch = this.selected || this.zoomed;
    const inner = this.isFlame ? 'ArrowUp' : 'ArrowDown';
    const outer = this.isFlame ? 'ArrowDown' : 'ArrowUp';
    const beside = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    let next = null;
    if (event.key === inner) next = this.tree.children(branch)[0];
    else if (event.key === outer) next = branch.parent;
    else if (beside && branch.parent) {
      const all = this.tree.children(branch.parent);
      next = all[all.indexOf(branch) + beside];
    } else if (event.key === 'Home') next = this.tree.root;
    else if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      if (!this.openRow(branch)) this.zoom(branch);
      return;
    } else if (event.key === 'Backspace' || event.key === 'Escape') {
      event.preventDefault();
      event.stopPropagation();
      const out = event.key === 'Escape' ? this.tree.root : this.zoomed.parent || this.tree.root;
      this.selected = out;
      this.zoom(out);
      this.onSelect(out);
      return;
    } else return;
    event.preventDefault();
    if (!next) return;
    if (!this.contains(this.zoomed, next)) this.zoom(next);
    this.select(next);
    this.reveal(next);
  }

  contains(outer, branch) {
    for (let at = branch; at; at = at.parent) if (at === outer) return true;
    return false;
  }

  reveal(branch) {
    const y = this.top(branch.level);
    // Scrolling draws.
    if (y < 0) this.scroller.scrollTop = this.offset + y;
    else if (y + this.row > this.viewHeight) this.scroller.scrollTop = this.offset + y + this.row - this.viewHeight;
  }
}
