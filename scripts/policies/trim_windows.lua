-- Verify windows: short when many requests decode, none where drafts are not believed.
--
-- Every draft that is verified is one more row of the step. With few requests rows are nearly
-- free; with many they make the step longer for everybody. This script lets a request verify as
-- many drafts as keep all windows together below `rows`, and stops drafting for a class (tenant
-- and class) of whose drafts less than `least` were right, once `enough` of them were seen. A
-- paused class is asked about again every second with half of the old evidence, so it gets another
-- try after some seconds. No answer changes any token: windows only decide how soon it comes.

local rows = 128   -- draft rows of a step, all requests together
local least = 0.25 -- share of right drafts below which drafting is a waste
local enough = 64  -- verified drafts before that is believed

function window(class, view)
    if class.verified >= enough and class.accepted < least * class.verified then
        return "pause"
    end
    local cap = rows // view.batch
    if cap < view.block then
        return cap
    end
end
