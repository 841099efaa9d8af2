// The mechanism of a lane beside its chart: the window with the requests that it counts, the bucket, or the queue.

import { append, clip, FAR, FRESH, round, stack } from './svg.js';

const [WIDTH, HEIGHT] = [132, 92];

/** How many periods of requests are shown with a window. */
const PERIODS = 1.4;

/** Draws the mechanism of `lane` in the element `svg`, from the server's instant `now`. */
export function mechanism(svg, lane, now) {
  svg.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
  if (lane.algorithm.frames) return new Window(svg, lane, now);
  return lane.algorithm.delays ? new Queue(svg, lane) : new Bucket(svg, lane);
}

/** A window that moves over the admitted requests, and highlights those that it counts. */
class Window {
  #lane;
  #base;
  #isStale = true;
  #drawnAt = -Infinity;
  #all;
  #frames;

  constructor(svg, lane, now) {
    this.#lane = lane;
    this.#base = now;
    append(svg, 'path', { class: 'base', d: `M0 ${HEIGHT - 8.5}H${WIDTH}` });
    this.#all = append(append(svg, 'g'), 'path', { class: 'uncounted' });
    this.#frames = [0, 1].map((index) => {
      const frame = append(svg, 'rect', { class: 'frame', y: 4, height: HEIGHT - 8, rx: 3 });
      const { area, group } = clip(svg, `counted-${lane.algorithm.name}-${index}`);
      area.setAttribute('height', HEIGHT);
      const scroll = append(group, 'g');
      return { frame, area, scroll, path: append(scroll, 'path', { class: 'allowed' }) };
    });
    lane.addEventListener('change', () => (this.#isStale = true));
  }

  draw(now) {
    const scale = WIDTH / (PERIODS * this.#lane.rate.seconds * 1000);
    const x = (at) => WIDTH + (at - now) * scale;
    if (this.#isStale && Math.abs(now - this.#drawnAt) > FRESH) {
      this.#isStale = false;
      if (Math.abs(now - this.#base) > FAR) this.#base = now;
      this.#drawnAt = now;
      const path = stack(
        this.#lane.records.filter(({ admitted }) => admitted > now - 2 * PERIODS * this.#lane.rate.seconds * 1000),
        ({ admitted }) => (admitted - this.#base) * scale,
        HEIGHT - 9,
        HEIGHT - 18,
      );
      for (const layer of [this.#all, ...this.#frames.map(({ path }) => path)]) layer.setAttribute('d', path);
    }
    const frames = this.#lane.algorithm.frames(this.#lane.settings, now);
    const transform = `translate(${round(x(this.#base))} 0)`;
    this.#all.parentNode.setAttribute('transform', transform);
    this.#frames.forEach(({ frame, area, scroll }, index) => {
      const { from = now, to = now, weight = 0 } = frames[index] ?? {};
      const [left, width] = [round(Math.max(x(from), 0)), round(Math.max(x(to) - Math.max(x(from), 0), 0))];
      for (const rectangle of [frame, area]) {
        rectangle.setAttribute('x', left);
        rectangle.setAttribute('width', width);
      }
      for (const layer of [frame, scroll]) layer.setAttribute('opacity', round(weight));
      scroll.setAttribute('transform', transform);
    });
  }
}

/** A bucket that refills or leaks. Between two answers, its level moves at its rate. */
class Bucket {
  #lane;
  #level;

  constructor(svg, lane) {
    this.#lane = lane;
    const name = lane.algorithm.drains ? 'full' : 'tokens';
    this.#level = append(svg, 'rect', { class: name, x: 37, width: 58 });
    append(svg, 'path', { class: 'vessel', d: `M36 12V${HEIGHT - 5}H96V12` });
    const drop = lane.algorithm.drains ? `M66 ${HEIGHT - 4}v5` : 'M66 2v7m-3 -3l3 3l3 -3';
    append(svg, 'path', { class: 'vessel', d: drop });
  }

  draw(now) {
    const { algorithm, rate, settings, capacity } = this.#lane;
    const sample = this.#lane.sample(now);
    if (!sample) return;
    const moved = settings.refill === 'interval' ? 0 : ((now - sample.at) / 1000) * (rate.tokens / rate.seconds);
    const used = Math.max(sample.used - Math.min(moved, 1), 0);
    const level = ((algorithm.drains ? used : capacity - used) / capacity) * (HEIGHT - 20);
    this.#level.setAttribute('y', round(HEIGHT - 6 - level));
    this.#level.setAttribute('height', round(level));
  }
}

/** A queue that moves to the right, and lets one request out at a time. */
class Queue {
  #lane;
  #waiting;
  #leaving;

  constructor(svg, lane) {
    this.#lane = lane;
    append(svg, 'path', { class: 'vessel', d: 'M4 34H98M4 60H98M98 34v7M98 60v-7' });
    this.#waiting = append(svg, 'path', { class: 'delayed' });
    this.#leaving = append(svg, 'path', { class: 'allowed' });
  }

  draw(now) {
    const { rate, records, settings } = this.#lane;
    const interval = (rate.seconds * 1000) / rate.tokens;
    const step = 90 / Math.max(settings.waiting, 1);
    const size = Math.min(14, step - 3);
    const square = (left) => `M${round(left)} ${47 - size / 2}h${size}v${size}h${-size}z`;
    const left = records.filter(({ admitted }) => admitted <= now && admitted > now - 2 * interval);
    const last = left.at(-1)?.admitted ?? now;
    // Of those without an answer, only the order is known.
    const places = this.#lane.waiting(now).map(({ admitted }, index) => {
      const turn = admitted ? (admitted - now) / interval : index + 1 - (now - last) / interval;
      return Math.max(turn, 0);
    });
    this.#waiting.setAttribute('d', places.map((turn) => square(96 - size - turn * step)).join(''));
    this.#leaving.setAttribute('d', left.map(({ admitted }) => square(100 + ((now - admitted) / interval) * 18)).join(''));
  }
}
