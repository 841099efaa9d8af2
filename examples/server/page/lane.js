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
  #connection;
  #aborter = new AbortController();
  #timer;
  /** The browser's time of the last response. */
  #answered = -Infinity;
  /** The requests that are no longer kept, by verdict. */
  #dropped;
  /** The last sample that was compared with the lane's own requests, to find those of others. */
  #compared;

  constructor(algorithm, settings, clock, connection) {
    super();
    this.algorithm = algorithm;
    this.settings = settings;
    this.#clock = clock;
    this.#connection = connection;
    this.#clear();
  }

  #clear() {
    this.records = [];
    this.pending = new Set();
    /** What the limit counts: `{at, used}` in order of time. */
    this.samples = [];
    /** What the limit has counted for others: `{at, count}` in order of time. */
    this.others = [];
    this.capacity = null;
    this.error = '';
    this.response = null;
    this.admissions = new Admissions(this.rate.seconds * 1000);
    this.#dropped = { allowed: 0, delayed: 0, denied: 0 };
    this.#compared = null;
  }

  /** The rate that the algorithm means to allow. */
  get rate() {
    return this.algorithm.rate(this.settings);
  }

  /** The tokens in the span of the rate above which the chart is red. */
  get most() {
    return this.algorithm.most(this.settings);
  }

  /** Returns the requests that wait at the instant `now`. */
  waiting(now) {
    const delayed = this.records.filter(({ arrival, delay, admitted }) => delay > 0 && arrival <= now && admitted > now);
    return [...delayed, ...[...this.pending].filter(({ sent }) => now - sent > WAITING)];
  }

  /** Returns how many requests had each verdict until `now`. Those that are delayed are allowed, too. */
  totals(now) {
    const totals = { ...this.#dropped };
    for (const { arrival, verdict } of this.records) if (arrival <= now) totals[verdict] += 1;
    return { ...totals, allowed: totals.allowed + totals.delayed };
  }

  /** Returns the sample that was valid at `now`, if there is one. */
  sample(now) {
    return this.samples.findLast(({ at }) => at <= now);
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

  #record(record, { status, body }) {
    if (status === 429) {
      record.arrival = this.#clock.now();
      record.verdict = 'denied';
      record.wait = body.retry_after_seconds === null ? null : milliseconds(body.retry_after_seconds);
    } else if (status === 200) {
      record.arrival = milliseconds(body.at_seconds);
      record.delay = milliseconds(body.delay_seconds);
      record.admitted = milliseconds(body.at_seconds + body.delay_seconds);
      record.verdict = record.delay > 0 ? 'delayed' : 'allowed';
      this.admissions.add(record.admitted, record.cost);
    } else {
      record.verdict = 'failed';
      return;
    }
    record.remaining = body.remaining;
    this.records.push(record);
    if (this.records.length > MOST) this.#dropped[this.records.shift().verdict] += 1;
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

  /** Returns the response, or nothing if the request was aborted or the server does not decide it. */
  async #request(path, signal, method = 'GET') {
    const [sent, at] = [this.#clock.browserTime(), this.#clock.now()];
    const response = await this.#fetch(path, signal, method);
    if (!response || signal.aborted) return null;
    const { status, statusText, headers, text, received } = response;
    if (status >= 500) {
      this.#fail(`The server answers ${status}: its store fails.`);
      return null;
    }
    const body = status === 200 || status === 429 ? JSON.parse(text) : null;
    if (status === 200) this.#clock.observe(sent, received, milliseconds(body.at_seconds));
    this.#connection.answered(at);
    this.error = status === 400 ? text.trim() : '';
    this.#sample(headers, status === 200 ? milliseconds(body.at_seconds) : this.#clock.now());
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
      this.#fail(hangs ? `No answer for ${PATIENCE / 1000} s: the server hangs.` : 'The server cannot be reached.', hangs);
      return null;
    }
  }

  #fail(text, mayAnswer = false) {
    this.#connection.failed(text);
    if (!mayAnswer) this.pending.clear();
    this.#changed();
  }

  /** Learns from the headers what remains, which any response tells. */
  #sample(headers, at) {
    const remaining = /;r=(\d+)/.exec(headers.get('ratelimit'));
    const quota = /;q=(\d+)/.exec(headers.get('ratelimit-policy'));
    if (!remaining || !quota) return;
    const [last, before] = [this.samples.at(-1), this.samples.at(-2)];
    // A response that was delayed describes an instant long ago.
    if (last && last.at > at) return;
    this.capacity = Number(quota[1]);
    const used = this.capacity - Number(remaining[1]);
    if (before?.used === used && last.used === used) last.at = at;
    else this.samples.push({ at, used });
    if (this.samples.length > MOST) this.samples.shift();
    this.#findOthers({ at, used });
    if (used > 0) this.#ensurePeeking();
  }

  /** Compares what the limit counts with the lane's own requests. While some are on their way, that is not known. */
  #findOthers(sample) {
    if (this.pending.size > 0) return;
    const since = this.#compared;
    this.#compared = sample;
    if (!since) return;
    const own = this.records.filter(({ admitted, arrival }) => admitted && arrival > since.at && arrival <= sample.at);
    const count = sample.used - since.used - own.reduce((sum, { cost }) => sum + cost, 0);
    if (count > 0) this.others.push({ at: sample.at, count });
    if (this.others.length > MOST) this.others.shift();
  }

  #ensurePeeking() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.peek(), SHORTEST_PAUSE);
  }

  #changed() {
    this.dispatchEvent(new Event('change'));
  }
}
