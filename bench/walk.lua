-- Walks a file of whole requests, each ended by a zero byte, and tells what came of them as JSON.
-- REQUESTS: the file. ONCE=1: no request twice; when all are used up the last is repeated and "exhausted" says so.
local requests, at, once = {}, 0, os.getenv("ONCE") == "1"
exhausted = false

local threads = {}
function setup(thread) table.insert(threads, thread) end

function init(_)
  local file = assert(io.open(os.getenv("REQUESTS"), "rb"))
  local text = file:read("*a")
  file:close()
  local from = 1
  while true do
    local to = string.find(text, "\0", from, true)
    if not to then break end
    requests[#requests + 1] = string.sub(text, from, to - 1)
    from = to + 1
  end
end

function request()
  if at == #requests then
    if once then exhausted = true else at = 0 end
  end
  if at < #requests then at = at + 1 end
  return requests[at]
end

function done(summary, latency, _)
  local is_exhausted = false
  for _, thread in ipairs(threads) do
    if thread:get("exhausted") then is_exhausted = true end
  end
  local errors = summary.errors
  io.write(string.format(
    '\n{"seconds":%.6f,"answers":%d,"refused":%d,"broken":%d,"p50Us":%.1f,"p99Us":%.1f,"maxUs":%.1f,"exhausted":%s}\n',
    summary.duration / 1e6, summary.requests, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99), latency.max, tostring(is_exhausted)))
end
