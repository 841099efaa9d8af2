-- Decides a request of several limits, or of one that has an override or a penalty; and those that differ from it only
-- in their keys.

local module, now_hi, now_lo, clock_ahead, place, first_key, _, same, reply, progress = ...
local KEYS, text = KEYS, ARGV[2]
local byte, char = string.byte, string.char
local ACQUIRE, PEEK = 97, 112 -- a, p
local SHADOW, QUOTA = 115, 113 -- s, q

local loaded = {}
local keys = module('key', clock_ahead)

-- Returns what the file `name`, or of the algorithm with that tag, returns. It is run once.
local function load(name)
  local returned = loaded[name]
  if not returned then
    returned = module(name, load, now_hi, now_lo, keys)
    loaded[name] = returned
  end
  return returned
end

-- Read the limits.
local task, count = byte(text, place, place + 1)
local limits, has_overrides, has_penalties = {}, false, false
place = place + 5
for i = 1, count do
  local tag, mode, has_penalty, override = byte(text, place, place + 3)
  local expected_override, penalty = false, false
  place = place + 4
  if override > 0 then
    has_overrides, expected_override = true, string.sub(text, place, place + override - 2)
    place = place + override - 1
  end
  local rule, charge = load(char(tag))
  charge, place = rule.parse(text, place, char(tag))
  if has_penalty == 1 then
    has_penalties = true
    penalty, place = load('penalty').parse(text, place)
  end
  limits[i] = {
    rule = rule,
    charge = charge,
    is_free = charge.cost == 0,
    mode = mode,
    penalty = penalty,
    expected_override = expected_override,
    key = '',
    override_key = '',
    penalty_key = '',
    has_room = false,
  }
end

local length = progress.length
for done = progress.done, same do
  -- Should an error end this one, it is known which one it was.
  progress.done, progress.length = done, length
  local start, has_changed = length, false
  length = start + 1

  -- Find the keys of each limit.
  for i = 1, count do
    local limit = limits[i]
    limit.key, first_key = KEYS[first_key], first_key + 1
    if limit.expected_override then limit.override_key, first_key = KEYS[first_key], first_key + 1 end
    if limit.penalty then limit.penalty_key, first_key = KEYS[first_key], first_key + 1 end
  end

  -- Compare the overrides with the expected ones. If one differs, the reply is all of them.
  if has_overrides then
    for i = 1, count do
      local expected, state = limits[i].expected_override, ''
      if expected then state = load('override').current(limits[i].override_key) end
      if expected and state ~= expected then has_changed = true end
      reply[length + 1], reply[length + 2] = char(#state / 18), state
      length = length + 2
    end
    if has_changed then reply[start + 1] = char(111, count) else length = start + 1 end
  end

  if not has_changed then
    -- Peek all.
    local is_allowed, quota_has_room, keys_read = true, nil, count
    for i = 1, count do
      local limit = limits[i]
      local has_room, states = limit.rule.peek(limit.charge, limit.key)
      limit.has_room = has_room
      reply[length + 1], reply[length + 2] = states == '' and '\0' or char(#states / 18), states
      length = length + 2
      if limit.penalty then
        states = load('penalty').peek(limit.penalty, limit.penalty_key)
        reply[length + 1], reply[length + 2] = char(#states / 18), states
        length, keys_read = length + 2, keys_read + 1
        has_room = has_room and not limit.penalty.is_locked_out
      end
      has_room = has_room or limit.is_free
      if limit.mode == QUOTA then
        quota_has_room = quota_has_room or has_room
      elseif limit.mode ~= SHADOW and not has_room then
        is_allowed = false
      end
    end
    if quota_has_room == false then is_allowed = false end
    reply[start + 1] = char(is_allowed and 121 or 110, keys_read)

    -- Commit all or none. What another rate has left is converted in any case.
    local commits = is_allowed and task == ACQUIRE
    for i = 1, count do
      local limit = limits[i]
      local charge = limit.charge
      if limit.is_free then
        -- Changes nothing.
      elseif commits and limit.has_room then
        limit.rule.commit(charge, limit.key)
      elseif charge.has_other_rate then
        limit.rule.convert_rate(charge, limit.key)
      end
    end

    -- Count the denial as a strike for each limit that has no room.
    if has_penalties and not is_allowed and task ~= PEEK then
      for i = 1, count do
        local limit = limits[i]
        local penalty = limit.penalty
        local is_denied = not (limit.has_room or limit.is_free)
        if penalty and is_denied and penalty.max_strikes > 0 and not penalty.is_locked_out then
          load('penalty').strike(penalty, limit.penalty_key)
        end
      end
    end
  end
end
progress.length = length
