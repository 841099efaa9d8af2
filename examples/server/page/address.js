// The choice of lanes and their settings in the address of the page, so that it can be shared and survives a reload.

import { ALGORITHMS, defaults } from './algorithms.js';

/** Returns the algorithms to show, and the settings of all of them. */
export function read() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const names = parameters.get('show')?.split(',');
  const isShown = ({ name, shown }) => (names ? names.includes(name) : Boolean(shown));
  const settings = new Map(ALGORITHMS.map((algorithm) => [algorithm, settingsOf(algorithm, parameters)]));
  return { shown: new Set(ALGORITHMS.filter(isShown)), settings };
}

function settingsOf(algorithm, parameters) {
  const settings = defaults(algorithm);
  for (const { name, choices, min, max } of algorithm.parameters) {
    const text = parameters.get(`${algorithm.name}.${name}`);
    if (text === null) continue;
    if (choices?.includes(text)) settings[name] = text;
    if (!choices && Number(text) >= min && Number(text) <= max) settings[name] = Number(text);
  }
  return settings;
}

/** Writes what differs from the defaults. */
export function write(shown, settings) {
  const parameters = new URLSearchParams();
  if (ALGORITHMS.some((algorithm) => shown.has(algorithm) !== Boolean(algorithm.shown))) {
    parameters.set('show', [...shown].map(({ name }) => name).join(','));
  }
  for (const [algorithm, values] of settings) {
    const usual = defaults(algorithm);
    for (const [name, value] of Object.entries(values)) {
      if (value !== usual[name]) parameters.set(`${algorithm.name}.${name}`, value);
    }
  }
  const hash = parameters.toString().replaceAll('%2C', ',');
  history.replaceState(null, '', hash ? `#${hash}` : location.pathname);
}
