// The state of the page, in the part of the address behind `#`: a link, or going back, restores it.

const DEFAULTS = {
  metric: '', view: 'icicle', inverted: '', zoom: '', search: '', range: '', tab: 'functions', sort: '', theme: '',
  // Of the served page only: which recording, compared with which, in which stretches, drawn how wide; which part of it; whether it is paused.
  recording: '', against: '', before: '', after: '', width: 'both', live: '',
  below: '', thread: '', size: '', function: '', module: '', from: '', to: '',
  // Rows of a table, `20`, or the least part of the whole that is shown, `1%`; `all` for everything.
  limit: '',
};

/** The rows of a table, and the least share of the whole that a row or a frame has; `usual` rows unless the state says more. */
export function limitOf(text, usual) {
  const [, number, isShare] = /^(\d+(?:\.\d+)?)(%?)$/.exec(text) || [];
  if (text === 'all') return { rows: Infinity, share: 0 };
  if (number === undefined) return { rows: usual, share: 0 };
  return isShare ? { rows: Infinity, share: Number(number) / 100 } : { rows: Number(number), share: 0 };
}

/** The state that an address names; its users ignore invalid values. */
export function readState() {
  const state = { ...DEFAULTS };
  const wanted = new URLSearchParams(location.hash.slice(1));
  for (const key of Object.keys(DEFAULTS)) if (wanted.has(key)) state[key] = wanted.get(key).slice(0, 20000);
  return state;
}

/** Writes the state; `isStep` makes it one to go back from. */
export function writeState(state, isStep) {
  const words = new URLSearchParams();
  for (const [key, usual] of Object.entries(DEFAULTS)) if (state[key] !== usual) words.set(key, state[key]);
  const hash = `#${words}`;
  if (hash === location.hash || (hash === '#' && !location.hash)) return;
  try {
    if (isStep) history.pushState(null, '', hash);
    else history.replaceState(null, '', hash);
  } catch {
    // Browsers refuse hundreds of changes in some seconds; the next one is written.
  }
}
