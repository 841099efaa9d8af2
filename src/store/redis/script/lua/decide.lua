-- Performs requests one after the other, each all or nothing, at one instant.
--
-- KEYS are the keys of all requests, in the order in which these name them. ARGV[1] is empty, or a clock for tests: the
-- instant (hi, lo), and for how many ms keys are kept longer. ARGV[2] is the requests, as script/request.rs encodes them:
--
--   request  task, number of limits, number of keys, length of the request (2 bytes), then its limits
--   limit    tag of the algorithm, mode, whether it has a penalty, 0 or 1 + the length of the expected override, the
--            expected override, the algorithm's arguments, the penalty's arguments
--   refund   tag of the algorithm, mark, the algorithm's arguments
--   keys     of a limit: its own, its override's if one is expected, its penalty's if it has one
--
-- Or a request is `=`: the same as the one before it, with other keys.
--
-- The reply is one string, which is cheaper for both sides than an array: the present instant as a state, then for each
-- request `y` if it is allowed or `n`, the number of keys that were read (of limits and of penalties), and for each the
-- number of states that it held before, and those. `o` says that an override is not the expected one: nothing was
-- decided, and the states are the overrides. `e` is an error: its length (2 bytes), and its text. It concerns only its
-- request: a key that holds something else, a command that Redis rejects, an unknown tag.
--
-- `module(name, ...)` runs another of these files: script/mod.rs defines it in front of this one.

local KEYS, clock, text = KEYS, ARGV[1], ARGV[2]

-- The present instant. Redis' own clock is `clock_ahead` ms ahead of it.
local time = redis.call('TIME')
local now = time[1] * 1e6 + time[2]
local now_hi, clock_ahead = math.floor(now / 1e9), 0
local now_lo = now - now_hi * 1e9
if clock ~= '' then
  local kept
  now_hi, now_lo, kept = struct.unpack('<ddd', clock)
  clock_ahead = math.floor(now / 1000) - (now_hi * 1e6 + math.floor(now_lo / 1000)) + kept
end

-- The parts of the reply, where the next request begins in the text and in the keys, and how many parts there are.
local reply = { struct.pack('<I6I4I4I4', now_hi, now_lo, 0, 0) }
local place, key, length = 1, 1, 1

while place <= #text do
  -- A request, and those that follow it and differ only in their keys.
  local task, limits, keys, low, high, tag = string.byte(text, place, place + 5)
  local next_place, same = place + low + 256 * high, 0
  if next_place <= #text then
    local _, last = string.find(text, '^=*', next_place)
    next_place, same = last + 1, last + 1 - next_place
  end
  local name, single = 'task', false
  if task == 97 or task == 112 or task == 116 then -- acquire, peek, peek with strikes
    name = 'limits'
    if limits == 1 and keys == 1 then
      if tag == 100 or tag == 113 then single = 'single d' elseif tag == 119 or tag == 107 then single = 'single w' end
    end
  end

  -- An error ends one request, and those that follow it go on.
  local progress = { done = 0, length = length }
  while progress.done <= same do
    local before, first, last = progress.done, key + progress.done * keys, same
    local is_done, message = false, nil
    if single then
      is_done = pcall(module, single, module, now_hi, now_lo, clock_ahead, place, first, keys, same, reply, progress)
      if is_done then break end
      -- The request that failed is left to limits.lua.
      progress.length = progress.length + 2 * (progress.done - before)
      first, last = key + progress.done, progress.done
    end
    is_done, message = pcall(module, name, module, now_hi, now_lo, clock_ahead, place, first, keys, last, reply, progress)
    if not is_done then
      message = type(message) == 'table' and message.err or tostring(message)
      -- Redis 6.2 puts the place before it, `@user_script: 17: -`, and ends the line.
      message = message:sub(1, 999):gsub('^@[^:]*: %d+: ', ''):gsub('^%-', ''):gsub('%s+$', '')
      length = progress.length
      reply[length + 1], reply[length + 2] = 'e' .. struct.pack('<I2', #message), message
      progress.length = length + 2
    end
    progress.done = progress.done + 1
  end
  place, key, length = next_place, key + (same + 1) * keys, progress.length
end
return table.concat(reply, '', 1, length)
