// Sentences about what a lane has decided: why a request got its answer, and what has just happened.

import { timeOfDay } from './clock.js';

/** Writes a span of milliseconds, such as "3.4 s". */
export const span = (milliseconds) =>
  milliseconds < 95 ? `${Math.max(Math.ceil(milliseconds), 0)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;

const percent = (part) => `${Math.round(part * 100)} %`;

/** How often a token comes back, such as "one comes back every 0.4 s". */
const pace = ({ rate, settings }) =>
  settings.refill === 'interval'
    ? `${rate.tokens} come back every ${rate.seconds} s`
    : `one comes back every ${short(rate.seconds / rate.tokens)} s`;

const short = (number) => Number(number.toPrecision(2));

const counted = ({ used, since }) => `${used} were counted since ${since}`;

/** Why each algorithm denied a request, with `used` tokens in use. */
const WHY = {
  'fixed-window': counted,
  'sliding-log': counted,
  'sliding-window': counted,
  'sliding-window-counter': ({ used, since, weight }) =>
    `${counted({ used, since })}, at ${percent(weight)} those of the window before`,
  'token-bucket': ({ left }) => (left > 0 ? `only ${left} left` : 'the bucket was empty'),
  'leaky-bucket': ({ left }) => (left > 0 ? `there was room for ${left} only` : 'the bucket was full'),
  'leaky-bucket-queue': ({ lane, used }) => `${used} of ${lane.capacity} places were taken`,
};

/** Says why `record` got its answer, or how long it has been waiting at the instant `now`. */
export function reason(lane, record, now) {
  const { verdict, arrival, remaining, wait, delay, admitted } = record;
  if (verdict === 'pending' || (verdict === 'delayed' && admitted > now)) return `waiting for ${span(now - arrival)}`;
  const frames = lane.algorithm.frames?.(lane.settings, arrival);
  const used = lane.capacity - remaining;
  const since = frames && timeOfDay(frames[0].from);
  if (verdict === 'denied') {
    const why = WHY[lane.algorithm.name]({ lane, used, since, weight: frames?.[0].weight, left: remaining });
    return `denied: ${why}; ${wait === null ? 'it costs more than the limit' : `free in ${span(wait)}`}`;
  }
  if (verdict === 'delayed') return `delayed by ${span(delay)}: ${pace(lane).replace('comes back', 'leaves the queue')}`;
  if (lane.algorithm.delays) return 'allowed at once: the queue was empty';
  if (!frames) return `allowed: ${remaining} of ${lane.capacity} tokens were left`;
  return `allowed: ${used} of ${lane.capacity} counted since ${since}`;
}

/** How each algorithm comes to allow requests again. */
const REMEDY = {
  'fixed-window': ({ end }) => `its window is full until ${timeOfDay(end)}`,
  'sliding-log': ({ lane }) => `each counts for exactly ${lane.rate.seconds} s`,
  'sliding-window': ({ lane }) => `the oldest bucket leaves every ${short(lane.rate.seconds / lane.settings.buckets)} s`,
  'sliding-window-counter': ({ frames }) => `the window before still counts ${percent(frames[0].weight)}`,
  'token-bucket': ({ lane }) => pace(lane),
  'leaky-bucket': ({ lane }) => pace(lane),
};

/** Says in a sentence what has happened in the period until the latest request before `now`. */
export function caption(lane, now) {
  const { algorithm, settings, rate } = lane;
  const past = lane.records.filter(({ arrival }) => arrival <= now);
  const latest = past.at(-1);
  if (!latest) return algorithm.summary;
  const recent = past.filter(({ arrival }) => arrival > latest.arrival - rate.seconds * 1000);
  const passed = recent.filter(({ verdict }) => verdict !== 'denied');
  const denied = recent.length - passed.length;
  const delayed = passed.filter(({ delay }) => delay > 0);
  const total = passed.reduce((sum, { cost }) => sum + cost, 0);
  const times = passed.map(({ arrival }) => arrival);
  const length = Math.max(...times) - Math.min(...times);
  const within = length < 100 ? 'at once' : `in ${(length / 1000).toFixed(1)} seconds`;
  const frames = algorithm.frames?.(settings, latest.arrival);
  if (algorithm.delays) {
    const longest = Math.max(...delayed.map(({ delay }) => delay));
    const wait = delayed.length > 0 ? `, ${delayed.length} of them after up to ${span(longest)}` : '';
    const queued = `${passed.length} allowed${wait}`;
    return `${queued}${denied > 0 ? `; ${denied} denied, as only ${settings.waiting} may wait` : ''}.`;
  }
  if (frames && total > rate.tokens) {
    const edge = algorithm.name === 'fixed-window' ? 'the edge' : 'the estimate';
    const much = total === 2 * rate.tokens ? 'doubled the limit' : `let through more than ${rate.tokens}`;
    return `${total} ${within}: ${edge} ${much}.`;
  }
  const outcome = `${passed.length} allowed${denied > 0 ? `, ${denied} denied` : ''} ${within}`;
  if (!frames && total > settings.capacity) {
    return `${outcome}: the bucket held ${settings.capacity}, and ${pace(lane)}.`;
  }
  if (latest.verdict === 'denied') {
    const end = frames && frames[0].from + rate.seconds * 1000;
    return `${outcome}: ${REMEDY[algorithm.name]({ lane, frames, end })}.`;
  }
  return `${outcome}: ${latest.remaining} of ${lane.capacity} were left.`;
}
