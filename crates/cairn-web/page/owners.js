// The owners of calls, and the colour of each. cairn's own pictures have the same colours
// (`cairn_analysis::attribution::colours`).

import { element, nameElement } from './text.js';

/** Libraries with a colour of their own: the largest ones. */
const COLOURED_LIBRARIES = 3;
const LIBRARY = 'library';
const CLASS_OF_KIND = {
  mine: 'mine', interpreter: 'interpreter', 'standard-library': 'standard', runtime: 'standard', wrapper: 'standard', allocator: 'standard', unknown: 'unknown',
};
/** In the order of the legend. */
const CLASSES = ['mine', 'library-1', 'library-2', 'library-3', LIBRARY, 'standard', 'interpreter', 'unknown'];
const WORDS_OF_CLASS = {
  mine: 'your code', library: 'other libraries', standard: 'standard library, runtime, allocator', interpreter: 'interpreter', unknown: 'without a file',
};

export class Owners {
  constructor(list) {
    this.list = list;
    /** The allocator's own frames, which end nearly every stack. */
    this.isQuiet = list.map(({ kind }) => kind === 'allocator' || kind === 'wrapper');
    this.classes = list.map(({ kind }) => CLASS_OF_KIND[kind] || (kind === LIBRARY ? LIBRARY : ''));
    this.weights = list.map(() => 0);
    this.libraries = [];
  }

  /** Gives the largest libraries colours of their own, by the cost of their outermost calls. */
  rank({ calls, parents }, callOwners, totals) {
    for (let call = 1; call < calls; call++) {
      const owner = callOwners[call];
      if (owner !== callOwners[parents[call]]) this.weights[owner] += totals[call];
    }
    const libraries = this.list.map((_, i) => i).filter((i) => this.list[i].kind === LIBRARY);
    libraries.sort((a, b) => this.weights[b] - this.weights[a] || a - b);
    this.libraries = libraries.slice(0, COLOURED_LIBRARIES);
    this.libraries.forEach((owner, i) => (this.classes[owner] = `library-${i + 1}`));
  }

  text(owner) {
    return this.list[owner].text;
  }

  /** The class of an owner's colour; empty if it is no function. */
  classOf(owner) {
    return this.classes[owner];
  }

  /** The colours that are used, each with words. */
  legend() {
    const used = new Set(this.classes.filter((name, owner) => name && this.weights[owner] > 0));
    const words = (name) => {
      const own = this.libraries.find((owner) => this.classes[owner] === name);
      const interpreters = this.list.filter(({ kind }) => kind === 'interpreter');
      if (name === 'interpreter' && interpreters.length === 1) return interpreters[0].text;
      if (name === LIBRARY && !this.libraries.length) return 'libraries';
      return own === undefined ? WORDS_OF_CLASS[name] : this.text(own);
    };
    return CLASSES.filter((name) => used.has(name)).map((name) => ({ name, words: words(name) }));
  }
}

/** A square in the colour of a class; an empty one for what is no function. */
export function ownerKey(name) {
  const key = element('span', { class: 'key', 'aria-hidden': 'true' });
  if (name) key.style.background = `var(--owner-${name})`;
  return key;
}

/** The legend as elements. */
export function ownerKeys(owners) {
  return owners.legend().map(({ name, words }) => element('span', {}, ownerKey(name), nameElement(words)));
}

/** The colours of all classes, as the style has them. */
export function ownerColours(style) {
  return Object.fromEntries(CLASSES.map((name) => [name, style.getPropertyValue(`--owner-${name}`).trim()]));
}

/** A colour with a part of another one in it, from 0 to 1. Both are written as #rrggbb. */
export function mixed(colour, part, other) {
  const channel = (of, shift) => (parseInt(of.slice(1), 16) >> shift) & 255;
  const mix = (shift) => Math.round(channel(colour, shift) * (1 - part) + channel(other, shift) * part);
  return `rgb(${mix(16)} ${mix(8)} ${mix(0)})`;
}
