// The opening story: the same requests for each algorithm, across the edge of a window and at twice the rate.

import { TWICE } from './traffic.js';

/** The instants of the story's acts, in milliseconds after the edge of a window. Queues are empty at its end. */
const [FIRST, SECOND, STEADY, LAST, END] = [-600, 400, 2200, 5400, 7600];

/** How long the page can be looked at before the first request, in milliseconds. */
const LEAD = 800;

export class Story {
  /** Whether the page says what the story says. */
  isSpeaking = false;
  #traffic;
  #clock;
  #playback;
  #conclude;
  #aborter = null;
  /** What is said from which instant: `{at, text}` in order of time. */
  #lines = [];
  #end = Infinity;

  /** Calls `conclude` for its last sentence. */
  constructor(traffic, clock, playback, conclude) {
    this.#traffic = traffic;
    this.#clock = clock;
    this.#playback = playback;
    this.#conclude = conclude;
  }

  /** Whether the story is told at present. */
  get isPlaying() {
    return this.#aborter !== null || (this.#lines.length > 0 && !this.isTold);
  }

  /** Whether the story has been told to its end, so that it can be replayed. */
  get isTold() {
    return this.#lines.length > 0 && this.#clock.now() >= this.#end;
  }

  /** Lets the lanes start over, and sends the requests of the story to them, at a rate that the first one allows. */
  async tell(lanes) {
    this.forget();
    this.#playback.live();
    const aborter = new AbortController();
    const { signal } = aborter;
    this.#aborter = aborter;
    await Promise.all(lanes.map((lane) => lane.forget()));
    if (signal.aborted) return;
    await this.#send(lanes[0].rate, signal);
    if (this.#aborter === aborter) this.#aborter = null;
  }

  async #send({ tokens, seconds }, signal) {
    const begun = this.#clock.now();
    const edge = Math.ceil((begun + LEAD - FIRST) / (seconds * 1000)) * seconds * 1000;
    const line = (at, text) => ({ at, text });
    this.isSpeaking = true;
    this.#end = edge + END;
    this.#playback.showFrom(begun, this.#end);
    this.#lines = [
      line(begun, `Each limit allows ${tokens} requests in ${seconds} s. A window is about to end.`),
      line(edge + FIRST, `${tokens} requests, just before a window ends …`),
      line(edge + SECOND, `… and ${tokens} more, a second later. Which algorithms let them pass?`),
      line(edge + STEADY, `Now ${TWICE.describe({ tokens, seconds })}`),
    ];
    for (const at of [FIRST, SECOND]) {
      await this.#traffic.until(edge + at, signal);
      if (signal.aborted) return;
      this.#traffic.send(tokens, 1);
    }
    await this.#traffic.until(edge + STEADY, signal);
    const last = AbortSignal.timeout(LAST - STEADY);
    await TWICE.run(this.#traffic, { tokens, seconds, signal: AbortSignal.any([signal, last]) });
  }

  /** Sends no more, and forgets what was told. */
  forget() {
    this.#aborter?.abort();
    this.#aborter = null;
    this.#lines = [];
  }

  /** Shows the story again, from its beginning to its end. Nothing is sent. */
  replay() {
    this.isSpeaking = true;
    this.#playback.showFrom(this.#lines[0].at, this.#end);
  }

  /** Returns what is said at the instant `now`, if that is in the story. */
  line(now) {
    if (this.#lines.length === 0) return undefined;
    return now >= this.#end ? this.#conclude() : this.#lines.findLast(({ at }) => at <= now)?.text;
  }
}
