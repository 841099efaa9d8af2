-- Performs requests, from the one that `progress` names on. Most are of one limit, without an override and a penalty, of
-- the most frequent algorithms: these are decided here, all others in files of their own.
--
-- script/inline.rs puts the functions of `gcra` and `window` in place of their calls.

local module, KEYS, text, now, clock_ahead, reply, progress, gcra, window = ...
local ACQUIRE, PEEK, PEEK_WITH_STRIKES = 97, 112, 116 -- a, p, t
local GCRA, QUEUE, FIXED_WINDOW, CALENDAR_WINDOW = 100, 113, 119, 107 -- d, q, w, k
local SHADOW = 115 -- s

local byte, load = string.byte, progress.load
local place, first_key, length = progress.place, progress.key, progress.length

while place <= #text do
  -- A request, and those that follow it and differ only in their keys.
  local task, limits, keys, low, high, tag, mode = byte(text, place, place + 6)
  local next_place, same = place + low + 256 * high, 0
  if next_place <= #text then
    local _, last = string.find(text, '^=*', next_place)
    next_place, same = last + 1, last + 1 - next_place
  end

  local decides = task == ACQUIRE or task == PEEK or task == PEEK_WITH_STRIKES
  local is_gcra = tag == GCRA or tag == QUEUE
  if decides and keys == 1 and (is_gcra or tag == FIXED_WINDOW or tag == CALENDAR_WINDOW) then
    local charge, _
    if is_gcra then
      charge, _ = gcra.parse(text, place + 9, tag)
    else
      charge, _ = window.parse(text, place + 9, tag)
    end
    local is_free, commits = charge.cost == 0, task == ACQUIRE
    for done = progress.done, same do
      -- If an error ends this request, `progress` tells which one it was.
      progress.done, progress.length = done, length
      local key = KEYS[first_key + done]
      local has_room, state
      if is_gcra then
        has_room, state = gcra.peek(charge, key)
        if has_room and commits and not is_free then
          gcra.commit(charge, key)
        end
      else
        has_room, state = window.peek(charge, key)
        if has_room and commits and not is_free then
          window.commit(charge, key)
        end
      end
      if has_room or is_free or mode == SHADOW then
        reply[length + 1] = state == '' and 'y\1\0' or is_gcra and 'y\1\29' or 'y\1\22'
      else
        reply[length + 1] = state == '' and 'n\1\0' or is_gcra and 'n\1\29' or 'n\1\22'
      end
      reply[length + 2] = state
      length = length + 2
    end
  elseif progress.done <= same then
    if load == error then
      load = module('load')(module, now, clock_ahead)
      progress.load = load
    end
    local run = module(decides and 'limits' or 'task')
    run(load, KEYS, text, now, clock_ahead, place, first_key, keys, same, reply, progress)
    length = progress.length
  end

  place, first_key = next_place, first_key + (same + 1) * keys
  progress.place, progress.key, progress.done, progress.length = place, first_key, 0, length
end
