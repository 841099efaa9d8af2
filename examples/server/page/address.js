// What the page shows and sends, in its address, so that it can be shared and survives a reload.

import { ALGORITHMS, defaults } from './algorithms.js';

/** The fields of the traffic, which have their defaults in the page. */
const FIELDS = ['size', 'cost', 'rate'];
const field = (name) => document.getElementById(name);

/** Returns the algorithms to show, the settings of all, and the client that sends, and sets the fields of the traffic. */
export function read() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const names = parameters.get('show')?.split(',');
  const isShown = ({ name, shown }) => (names ? names.includes(name) : Boolean(shown));
  const settings = new Map(ALGORITHMS.map((algorithm) => [algorithm, settingsOf(algorithm, parameters)]));
  for (const name of FIELDS) {
    if (!parameters.has(name)) continue;
    field(name).value = parameters.get(name);
    if (!field(name).validity.valid) field(name).value = field(name).defaultValue;
  }
  return { shown: new Set(ALGORITHMS.filter(isShown)), settings, client: parameters.get('client') };
}

function settingsOf(algorithm, parameters) {
  const settings = defaults(algorithm);
  for (const { name, choices, min, max, step } of algorithm.parameters) {
    const text = parameters.get(`${algorithm.name}.${name}`);
    if (text === null) continue;
    if (choices?.includes(text)) settings[name] = text;
    const isWhole = step !== 1 || Number.isInteger(Number(text));
    if (!choices && isWhole && Number(text) >= min && Number(text) <= max) settings[name] = Number(text);
  }
  return settings;
}

/** Writes what differs from the defaults. */
export function write(shown, settings, client) {
  const parameters = new URLSearchParams();
  if (client) parameters.set('client', client.name);
  if (ALGORITHMS.some((algorithm) => shown.has(algorithm) !== Boolean(algorithm.shown))) {
    parameters.set('show', [...shown].map(({ name }) => name).join(','));
  }
  for (const [algorithm, values] of settings) {
    const usual = defaults(algorithm);
    for (const [name, value] of Object.entries(values)) {
      if (value !== usual[name]) parameters.set(`${algorithm.name}.${name}`, value);
    }
  }
  for (const name of FIELDS) {
    if (field(name).validity.valid && field(name).value !== field(name).defaultValue) parameters.set(name, field(name).value);
  }
  const hash = parameters.toString().replaceAll('%2C', ',');
  history.replaceState(null, '', hash ? `#${hash}` : location.pathname);
}
