// The requests of the served page: docs/book/reference/http.md describes them. Nothing else of the page knows a server.

const TOKEN_PLACE = 'cairn-token';

/** A refusal of the server, with its reason. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export class Api {
  /**
   * Takes the token out of the address, so that no copy of the address contains it. This browser stores the token
   * and can open such a copy with it; a token is invalid after its server has ended.
   */
  constructor() {
    this.token = location.pathname.split('/')[1];
    localStorage.setItem(TOKEN_PLACE, this.token);
    history.replaceState(null, '', `/${location.hash}`);
  }

  async ask(path, words = {}, options = {}) {
    const query = new URLSearchParams(Object.entries(words).filter(([, value]) => value !== '' && value !== undefined && value !== null));
    const address = `/api/1/${path}${query.size ? `?${query}` : ''}`;
    const answer = await fetch(address, { cache: 'no-store', credentials: 'omit', redirect: 'error', ...options, headers: { 'X-Cairn-Token': this.token } });
    if (answer.ok) return answer;
    const reported = await answer.json().catch(() => ({}));
    throw new Refused(answer.status, reported.error || `the server answered ${answer.status}`);
  }

  async recordings() {
    return (await this.ask('recordings')).json();
  }

  async recording(id) {
    return (await this.ask(`recordings/${encodeURIComponent(id)}`)).json();
  }

  /** The bytes of a recording's content and their version; nothing when the version is the known one. */
  async content(id, words) {
    const answer = await this.ask(`recordings/${encodeURIComponent(id)}/content`, words);
    if (answer.status === 204) return null;
    return { version: answer.headers.get('cairn-version'), bytes: new Uint8Array(await answer.arrayBuffer()) };
  }

  async slices(id, words) {
    const answer = await this.ask(`recordings/${encodeURIComponent(id)}/slices`, words);
    return new Uint8Array(await answer.arrayBuffer());
  }

  async comparison(words) {
    return new Uint8Array(await (await this.ask('comparison', words)).arrayBuffer());
  }

  async source(file) {
    return (await this.ask('source', { file })).json();
  }

  /** Sends a request to the program: `start`, `stop`, or `mark` with a text. */
  async send(id, wish, text = '') {
    return (await this.ask(`recordings/${encodeURIComponent(id)}/${wish}`, {}, { method: 'POST', body: text })).json();
  }
}
