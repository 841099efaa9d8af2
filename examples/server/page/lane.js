// One algorithm with its settings: sends requests to its route, and records what the server decides.

import { Admissions } from './admissions.js';

/** The number of requests and of samples that are kept. */
const MOST = 2000;

/** The shortest and the longest pause between two requests that only ask what remains, in milliseconds. */
const [SHORTEST_PAUSE, LONGEST_PAUSE] = [100, 500];

/** A request counts as waiting after so many milliseconds. */
const WAITING = 120;

const OPTIONS = { cache: 'no-store', headers: { accept: 'application/json' } };

/** Dispatches `change` when there is something new to show. */
export class Lane extends EventTarget {
  #clock;
  #aborter = new AbortController();
  #timer;

  constructor(algorithm, settings, clock) {
    super();
    this.algorithm = algorithm;
    this.settings = settings;
    this.#clock = clock;
    this.#clear();
  }

  #clear() {
    this.records = [];
    this.pending = new Set();
    this.totals = { allowed: 0, denied: 0, delayed: 0 };
    /** What the limit counts: `{at, used}` in order of time. */
    this.samples = [];
    this.capacity = null;
    this.remaining = null;
    this.error = '';
    this.response = null;
    this.admissions = new Admissions(this.rate.seconds * 1000);
  }

  /** The rate that the algorithm means to allow. */
  get rate() {
    return this.algorithm.rate(this.settings);
  }

  /** Returns the requests that wait at the server's time `now`. */
  waiting(now) {
    return [...this.pending].filter((record) => now - record.sent > WAITING);
  }

  /** Returns the path of a request, whose query has the settings. */
  path(cost) {
    const query = new URLSearchParams(this.settings);
    if (cost !== undefined) query.set('cost', cost);
    return `/${this.algorithm.name}?${query}`;
  }

  /** Sends a request, and resolves when its response is recorded. */
  async send(cost) {
    const record = { sent: this.#clock.now(), arrival: this.#clock.now(), cost, verdict: 'pending' };
    const aborter = this.#aborter;
    this.pending.add(record);
    this.#changed();
    const answer = await this.#request(this.path(cost), aborter);
    if (!answer || aborter !== this.#aborter) return record;
    this.pending.delete(record);
    this.response = answer;
    this.#record(record, answer);
    this.#changed();
    return record;
  }

  #record(record, { status, body, headers }) {
    record.arrival = this.#clock.now();
    if (status === 429) {
      record.verdict = 'denied';
      record.remaining = this.remaining;
      record.retryAfter = headers.get('retry-after');
      this.totals.denied += 1;
    } else if (status === 200) {
      record.arrival = body.decided_at / 1000;
      record.remaining = body.remaining;
      record.delay = body.delay / 1000;
      record.admitted = record.arrival + record.delay;
      record.verdict = record.delay > 0 ? 'delayed' : 'allowed';
      this.totals.allowed += 1;
      if (record.delay > 0) this.totals.delayed += 1;
      this.admissions.add(record.admitted, record.cost);
    } else {
      record.verdict = 'failed';
      return;
    }
    this.records.push(record);
    if (this.records.length > MOST) this.records.shift();
  }

  /** Asks what remains, at a cost of 0, now and again until nothing is in use. */
  async peek() {
    clearTimeout(this.#timer);
    const aborter = this.#aborter;
    const answer = await this.#request(this.path(0), aborter);
    if (!answer || aborter !== this.#aborter) return;
    this.#changed();
    this.#peekLater(answer.body?.more_after);
  }

  #peekLater(moreAfter) {
    clearTimeout(this.#timer);
    if (this.remaining === this.capacity && this.pending.size === 0) return;
    const wait = moreAfter == null ? LONGEST_PAUSE : Math.ceil(moreAfter / 1000) + 1;
    const pause = Math.min(Math.max(wait, SHORTEST_PAUSE), LONGEST_PAUSE);
    this.#timer = setTimeout(() => (document.hidden ? this.#peekLater() : this.peek()), pause);
  }

  /** Makes the server forget the requests of this client, and starts the record over. */
  async forget() {
    this.#aborter.abort();
    this.#aborter = new AbortController();
    clearTimeout(this.#timer);
    this.#clear();
    await this.#request(this.path(), this.#aborter, 'DELETE');
    await this.peek();
  }

  /** Starts over with other settings. */
  async change(settings) {
    this.settings = settings;
    await this.forget();
  }

  /** Stops all requests. */
  close() {
    this.#aborter.abort();
    clearTimeout(this.#timer);
  }

  /** Returns the response, or nothing if the request was aborted or the server can't be reached. */
  async #request(path, aborter, method = 'GET') {
    const sent = this.#clock.browserTime();
    try {
      const response = await fetch(path, { ...OPTIONS, method, signal: aborter.signal });
      const received = this.#clock.browserTime();
      const text = await response.text();
      const { status, statusText, headers } = response;
      const body = status === 200 ? JSON.parse(text) : null;
      if (aborter !== this.#aborter) return null;
      if (body) this.#clock.observe(sent, received, body.decided_at / 1000);
      this.error = status === 400 || status >= 500 ? text.trim() || statusText : '';
      this.#sample(headers, body);
      return { status, statusText, headers, text, body, method, path };
    } catch (error) {
      if (error.name !== 'AbortError') {
        this.error = 'The server does not answer. Is it still running?';
        this.pending.clear();
        this.#changed();
      }
      return null;
    }
  }

  /** Learns from the headers what remains, which any response tells. */
  #sample(headers, body) {
    const remaining = /;r=(\d+)/.exec(headers.get('ratelimit'));
    const quota = /;q=(\d+)/.exec(headers.get('ratelimit-policy'));
    if (!remaining || !quota) return;
    const at = body ? body.decided_at / 1000 : this.#clock.now();
    const last = this.samples.at(-1);
    // A response that was delayed describes an instant long ago.
    if (last && last.at > at) return;
    this.capacity = Number(quota[1]);
    this.remaining = Number(remaining[1]);
    this.samples.push({ at, used: this.capacity - this.remaining });
    if (this.samples.length > MOST) this.samples.shift();
    if (this.remaining < this.capacity) this.#ensurePeeking();
  }

  #ensurePeeking() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.peek(), SHORTEST_PAUSE);
  }

  #changed() {
    this.dispatchEvent(new Event('change'));
  }
}
