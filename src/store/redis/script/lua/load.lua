-- Returns the function that loads files: what the file `name`, or of the algorithm with that tag, returns. Each is run
-- once in a call.

local module, now_hi, now_lo, clock_ahead = ...
local loaded = {}

local function load(name)
  local returned = loaded[name]
  if not returned then
    returned = module(name)(load, now_hi, now_lo, clock_ahead)
    loaded[name] = returned
  end
  return returned
end

return load
