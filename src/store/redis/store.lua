          -- The millisecond of Redis' clock at which (hi, lo) has passed: absolute, as spans that a script works out
          -- start later than those that Redis counts from. Nothing is kept beyond the year 33,658.
          local ms = hi * 1e6 + ceil(lo / 1000) + shift
          if ms > 1e15 then ms = 1e15 end
          if ms ~= last_ms then last_ms, last_expiry = ms, format('%d', ms) end
          local kept = try('SET', id, state, 'PXAT', last_expiry)
          if kept.err then wrong = kept end
        end
      elseif moved and cost > 0 then
        if rule then guarded(rule.adopt, charge) else guarded(drains.adopt, id, a, hi, lo, n) end
      end
      if wrong then break end
    end
    if has_penalty and what ~= 112 and not (room or wrong) then guarded(seldom.strike) end
  end
