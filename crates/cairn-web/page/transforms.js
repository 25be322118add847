// Transforms of the tree of calls: the menu of a call, its keys, and the row of buttons that lists transforms and takes them back.

import { element, nameElement } from './text.js';
import { TRANSFORMS, transformsOf, transformsText } from './shape.js';

/** In the order of the menu, with the key of each. */
const KEYS = { F: 'ff', S: 'fs', M: 'mf', C: 'cm', R: 'cr', D: 'df' };
const MOST_OPENED = 200;

/** The numbers of the rows that an address opens. */
export function openedOf(text) {
  const numbers = text.split('.').slice(0, MOST_OPENED).map((word) => (/^[0-9a-z]{1,7}$/.test(word) ? parseInt(word, 36) : -1));
  return new Set(numbers.filter((number) => number >= 0));
}

export class Transforms {
  /** `page` has the state, the model and the graph; `box` shows the transforms, `menu` is the menu's place. */
  constructor({ page, box, menu }) {
    Object.assign(this, { page, box, menu });
    document.addEventListener('pointerdown', (event) => menu.contains(event.target) || this.close());
    document.addEventListener('wheel', () => this.close(), { passive: true });
    menu.addEventListener('keydown', (event) => this.menuKey(event));
  }

  get list() {
    return transformsOf(this.page.state.transforms);
  }

  /** The actions for a branch: words, a key, and a function. */
  actionsOf(branch) {
    const { model, state } = this.page;
    if (!branch?.parent) return [];
    const { call, functionNumber: f } = branch;
    const actions = [];
    const number = model.hasFolds ? model.rowNumberOf(call) : null;
    if (number !== null) {
      const isRow = model.isRow(call);
      const isOpen = openedOf(state.opened).has(number);
      if (isRow || isOpen) actions.push({ text: isRow ? 'Open these frames' : 'Fold these frames again', key: isRow ? 'Enter' : '', act: () => this.turnRow(branch) });
    }
    if (model.kinds[f] > 1) return actions;
    const keys = { function: model.key(f), module: model.moduleKey(f), path: state.inverted ? '' : model.focusPath(call) };
    for (const [key, id] of Object.entries(KEYS)) {
      const of = keys[TRANSFORMS[id].of];
      const { name } = TRANSFORMS[id];
      if (of) actions.push({ text: name[0].toUpperCase() + name.slice(1), key, act: () => this.add({ id, key: of }) });
    }
    return actions;
  }

  add(transform) {
    const { page } = this;
    page.flame.selected = null;
    page.choose({ transforms: transformsText([...this.list, transform]), zoom: '' });
  }

  /** Takes back all transforms but the first ones. */
  goBack(count) {
    this.page.choose({ transforms: transformsText(this.list.slice(0, count)), zoom: '' });
  }

  turnRow(branch) {
    const { page } = this;
    const number = page.model.rowNumberOf(branch.call);
    if (number === null) return;
    const opened = openedOf(page.state.opened);
    if (!opened.delete(number)) opened.add(number);
    page.choose({ opened: [...opened].map((one) => one.toString(36)).join('.') });
  }

  /** A key of a transform, at the chosen call; answers whether it was one. */
  press(key) {
    if (key === 'z' && this.list.length) this.goBack(this.list.length - 1);
    else {
      const action = this.actionsOf(this.page.flame.selected).find((one) => one.key === key && key.length === 1);
      if (!action) return false;
      action.act();
    }
    return true;
  }

  // --- views

  show() {
    const { list, page } = this;
    const { model } = page;
    const nameOf = ({ id, key }) => {
      if (TRANSFORMS[id].of === 'module') return model.moduleOfKey(key) || 'a module that is not here';
      const f = model.functionOf(key.split('.').at(-1));
      return f === undefined ? 'a function that is not here' : model.shortNames[f];
    };
    const button = (count, ...words) => element('button', {
      type: 'button', 'aria-current': count === list.length ? 'step' : null, title: count === list.length ? 'This is shown' : 'Go back to this', on: { click: () => this.goBack(count) },
    }, ...words);
    const transforms = list.map((transform, i) => button(i + 1, `${TRANSFORMS[transform.id].short}: `, nameElement(nameOf(transform))));
    this.box.hidden = list.length === 0;
    this.box.replaceChildren(button(0, 'everything'), ...transforms.flatMap((transform) => ['›', transform]), element('button', { type: 'button', id: 'undo-transform', title: 'Undo the last transform (z)', on: { click: () => this.goBack(list.length - 1) } }, 'Undo'));
  }

  open(branch, x, y) {
    const actions = this.actionsOf(branch);
    if (!actions.length) return;
    this.actions = actions;
    this.menu.replaceChildren(
      element('p', {}, nameElement(this.page.flame.label(branch))),
      ...actions.map(({ text, key, act }) => element('button', { type: 'button', role: 'menuitem', on: { click: () => { this.close(); act(); } } }, element('span', {}, text), element('kbd', { hidden: !key }, key))),
    );
    this.menu.hidden = false;
    const { width, height } = this.menu.getBoundingClientRect();
    this.menu.style.left = `${Math.max(4, Math.min(x, innerWidth - width - 4))}px`;
    this.menu.style.top = `${Math.max(4, Math.min(y, innerHeight - height - 4))}px`;
    this.before = document.activeElement;
    this.menu.querySelector('button').focus({ preventScroll: true });
  }

  close() {
    if (this.menu.hidden) return;
    this.actions = [];
    const hadFocus = this.menu.contains(document.activeElement);
    this.menu.hidden = true;
    if (hadFocus) this.before?.focus({ preventScroll: true });
  }

  menuKey(event) {
    const items = [...this.menu.querySelectorAll('button')];
    const at = items.indexOf(document.activeElement);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1 + items.length, Home: 0, End: items.length - 1 }[event.key];
    event.stopPropagation();
    const chosen = this.actions.find(({ key }) => key === event.key && key.length === 1);
    if (next !== undefined) items[next % items.length].focus();
    else if (chosen) {
      this.close();
      chosen.act();
    }
    else if (event.key === 'Escape' || event.key === 'Tab') this.close();
    else return;
    event.preventDefault();
  }
}
