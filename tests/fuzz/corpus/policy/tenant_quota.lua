-- Tenant quotas: how many requests, and how many tokens, a tenant may ask for in a time.
--
-- Every tenant has two buckets. One holds requests: it fills at `per_minute` and takes a burst of
-- `burst`. The other holds tokens, prompt and the most the answer may have: it fills at
-- `tokens_per_minute` and takes `token_burst` at once. A request that finds either empty gets
-- HTTP 429 with the reason. One that is larger than `token_burst` can never pass and gets 403.
-- Requests without a tenant share the buckets of "anonymous".
--
-- Change the two tables, then send SIGHUP: the buckets keep their level.

local standard = {per_minute = 60, burst = 20, tokens_per_minute = 200000, token_burst = 400000}

local plans = {
    -- tenant = its own numbers
    anonymous = {per_minute = 10, burst = 5, tokens_per_minute = 20000, token_burst = 40000},
}

function arrive(req)
    local tenant = req.tenant
    if tenant == "" then
        tenant = "anonymous"
    end
    local plan = plans[tenant] or standard
    local tokens = req.n * (req.prompt_tokens + req.prompts * req.max_tokens)
    if tokens > plan.token_burst then
        return "reject", "this request may use " .. tokens .. " tokens, the quota of tenant "
            .. tenant .. " allows at most " .. plan.token_burst .. " in one request", 403
    end
    if not kg.rate("r:" .. tenant, plan.per_minute / 60, plan.burst) then
        return "reject", "tenant " .. tenant .. " sent more than " .. plan.per_minute
            .. " requests per minute"
    end
    if not kg.rate("t:" .. tenant, plan.tokens_per_minute / 60, plan.token_burst, tokens) then
        return "reject", "tenant " .. tenant .. " used up its " .. plan.tokens_per_minute
            .. " tokens per minute"
    end
    return {tenant = tenant}
end
