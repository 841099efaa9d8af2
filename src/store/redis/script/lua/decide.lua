-- Performs requests one after the other, each all or nothing, at one instant.
--
-- KEYS are the keys of all requests, in the order in which these name them. ARGV[1] is empty, or a clock for tests: the
-- instant in µs, and for how many ms keys are kept longer. ARGV[2] is the requests, as script/request.rs encodes them:
--
--   request  task, number of limits, number of keys, length of the request (2 bytes), then its limits
--   limit    tag of the algorithm, mode, whether it has a penalty, whether it can be overridden, the algorithm's
--            arguments, those of its own size, the penalty's arguments
--   refund   tag of the algorithm, mark, the algorithm's arguments
--   keys     of a limit: its own, its override's if it can have one, its penalty's if it has one
--
-- Or a request is `=`: the same as the one before it, with other keys.
--
-- The reply is one string, which is cheaper for both sides than an array: the present instant (7 bytes), then for each
-- request `y` if it is allowed or `n`, the number of keys that were read (of overrides, limits and penalties), and for each
-- the length of the state that it held before, and that. `e` is an error: its length (2 bytes), and its text. It concerns
-- only its request: a key that holds something else, a command that Redis rejects, an unknown tag.
--
-- script/text.rs puts two functions in front of this file: `perform` is requests.lua, and `module(name)` returns any other
-- of these files as a function.

local KEYS, clock, text = KEYS, ARGV[1], ARGV[2]

-- The present instant, and `clock_ahead`: the ms to add to an expiry. With a test clock, they are the lead of Redis' own
-- clock, and the time for which keys are kept longer.
local time = redis.call('TIME')
local now, clock_ahead = time[1] * 1e6 + time[2], 0
if clock ~= '' then
  local own, kept = now
  now, kept = struct.unpack('<dd', clock)
  clock_ahead = math.floor(own / 1000) - math.floor(now / 1000) + kept
end

-- The parts of the reply. A table that grows is copied: this one has room for the reply to one request of one limit.
local reply = { struct.pack('<I7', now), '', '', '' }
local progress = {
  -- Where the next request begins in the text and in the keys.
  place = 1,
  key = 1,
  -- How many of the requests with the same text are done.
  done = 0,
  -- The number of parts of the reply.
  length = 1,
  -- Loads another file. Most calls need none: the first request that does fails, and is performed again.
  load = error,
}

-- An error ends one request, and those that follow it go on.
local is_done, message
repeat
  is_done, message = pcall(perform, module, KEYS, text, now, clock_ahead, reply, progress)
  if not is_done and progress.load == error then
    progress.load = module('load')(module, now, clock_ahead)
  elseif not is_done then
    message = type(message) == 'table' and message.err or tostring(message)
    -- Redis 6.2 puts the place before it, `@user_script: 17: -`, and ends the line.
    message = message:sub(1, 999):gsub('^@[^:]*: %d+: ', ''):gsub('^%-', ''):gsub('%s+$', '')
    local length = progress.length
    reply[length + 1], reply[length + 2] = 'e' .. struct.pack('<I2', #message), message
    progress.done, progress.length = progress.done + 1, length + 2
  end
until is_done
return table.concat(reply, '', 1, progress.length)
