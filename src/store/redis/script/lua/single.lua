-- Decides a request of one limit that has neither an override nor a penalty, and those that differ from it only in
-- their keys. Most requests are such: limits.lua would come to the same.
--
-- script/inline.rs puts `parse`, `peek` and `commit` of an algorithm in place of the calls. What seldom happens and needs
-- another file is left to limits.lua, as are errors: to `load` a file is one here.

local _, now_hi, now_lo, clock_ahead, place, first_key, _, same, reply, progress = ...
local load, KEYS, text = error, KEYS, ARGV[2]

local task, mode = string.byte(text, place), string.byte(text, place + 6)
local tag = string.sub(text, place + 5, place + 5)
local is_enforced, commits = mode ~= 115, task == 97
local charge, next_place = parse(text, place + 9, tag)
local length = progress.length
for done = progress.done, same do
  -- Should an error end this one, it is known which one it was.
  progress.done = done
  local key = KEYS[first_key]
  local is_allowed, held = peek(charge, key)
  if charge.cost == 0 then
    is_allowed = true
  elseif is_allowed and commits then
    commit(charge, key)
  end
  local has_state = held ~= ''
  if is_allowed or not is_enforced then
    reply[length + 1] = has_state and 'y\1\1' or 'y\1\0'
  else
    reply[length + 1] = has_state and 'n\1\1' or 'n\1\0'
  end
  -- Two parts for each request: decide.lua counts on that.
  reply[length + 2] = held
  length = length + 2
  first_key = first_key + 1
end
progress.length = length
