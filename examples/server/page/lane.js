// One algorithm with its settings: sends requests to its route, and records what the server decides.

import { Admissions } from './admissions.js';

/** The number of requests and of samples that are kept. */
const MOST = 2000;

/** The shortest and the longest pause between two requests that only ask what remains, in milliseconds. */
const [SHORTEST_PAUSE, LONGEST_PAUSE] = [100, 500];

/** The server hangs if it answers nothing, although no limit delays the request, for so many milliseconds. */
const PATIENCE = 3000;

/** A request counts as waiting after so many milliseconds. */
const WAITING = 120;

const OPTIONS = { cache: 'no-store', headers: { accept: 'application/json' } };

/** Returns a signal that also ends a request when the server hangs. */
const patient = (signal) => AbortSignal.any([signal, AbortSignal.timeout(PATIENCE)]);

/** Rounds to microseconds, so that requests can be exactly a period apart. */
const milliseconds = (seconds) => Math.round(seconds * 1e6) / 1000;

/** Dispatches `change` when there is something new to show. */
export class Lane extends EventTarget {
  #clock;
  #aborter = new AbortController();
  #timer;
  /** The browser's time of the last response. */
  #answered = -Infinity;

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
    this.pending.add(record);
    this.#changed();
    const answer = await this.#request(this.path(cost), this.#aborter.signal);
    if (!answer) return record;
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
      record.arrival = milliseconds(body.at_seconds);
      record.remaining = body.remaining;
      record.delay = milliseconds(body.delay_seconds);
      record.admitted = milliseconds(body.at_seconds + body.delay_seconds);
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

  /** Asks what remains, at a cost of 0, now and again: others may use the same limit. */
  async peek() {
    clearTimeout(this.#timer);
    const { signal } = this.#aborter;
    const answer = await this.#request(this.path(0), patient(signal));
    // Invalid settings stay invalid.
    if (signal.aborted || answer?.status === 400) return;
    this.#peekLater(answer?.body?.more_after_seconds);
  }

  #peekLater(moreAfter) {
    clearTimeout(this.#timer);
    const wait = moreAfter == null ? LONGEST_PAUSE : Math.ceil(moreAfter * 1000) + 1;
    const pause = Math.min(Math.max(wait, SHORTEST_PAUSE), LONGEST_PAUSE);
    this.#timer = setTimeout(() => (document.hidden ? this.#peekLater() : this.peek()), pause);
  }

  /** Makes the server forget the requests of this client, and starts the record over. */
  async forget() {
    this.#aborter.abort();
    this.#aborter = new AbortController();
    clearTimeout(this.#timer);
    this.#clear();
    await this.#request(this.path(), patient(this.#aborter.signal), 'DELETE');
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

  /** Returns the response, or nothing if the request was aborted or the server does not answer. */
  async #request(path, signal, method = 'GET') {
    const sent = this.#clock.browserTime();
    const response = await this.#fetch(path, signal, method);
    if (!response || signal.aborted) return null;
    const { status, statusText, headers, text, received } = response;
    const body = status === 200 ? JSON.parse(text) : null;
    if (body) this.#clock.observe(sent, received, milliseconds(body.at_seconds));
    this.error = status === 400 || status >= 500 ? text.trim() || statusText : '';
    this.#sample(headers, body);
    this.#changed();
    return { status, statusText, headers, text, body, method, path };
  }

  async #fetch(path, signal, method) {
    try {
      const response = await fetch(path, { ...OPTIONS, method, signal });
      const { status, statusText, headers } = response;
      const received = this.#clock.browserTime();
      this.#answered = received;
      return { status, statusText, headers, received, text: await response.text() };
    } catch (error) {
      // The browser sends few requests at a time, so this one may have waited for others.
      const isLate = this.#clock.browserTime() - this.#answered < PATIENCE;
      if (error.name === 'AbortError' || (error.name === 'TimeoutError' && isLate)) return null;
      const hangs = error.name === 'TimeoutError';
      this.error = hangs ? `No answer for ${PATIENCE / 1000} s: the server hangs.` : 'The server cannot be reached.';
      if (!hangs) this.pending.clear();
      this.#changed();
      return null;
    }
  }

  /** Learns from the headers what remains, which any response tells. */
  #sample(headers, body) {
    const remaining = /;r=(\d+)/.exec(headers.get('ratelimit'));
    const quota = /;q=(\d+)/.exec(headers.get('ratelimit-policy'));
    if (!remaining || !quota) return;
    const at = body ? milliseconds(body.at_seconds) : this.#clock.now();
    const [last, before] = [this.samples.at(-1), this.samples.at(-2)];
    // A response that was delayed describes an instant long ago.
    if (last && last.at > at) return;
    this.capacity = Number(quota[1]);
    this.remaining = Number(remaining[1]);
    const used = this.capacity - this.remaining;
    if (before?.used === used && last.used === used) last.at = at;
    else this.samples.push({ at, used });
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
