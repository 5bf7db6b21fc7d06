/* The core's own options: the only list of them. Everything else about them comes from here. */
#include "config.h"

#define ROW(key, kind, field, text, lo, hi, help)                                          \
    {                                                                                      \
        .name = key, .type = kind, .offset = offsetof(struct kg_conf, field), .def = text, \
        .min = lo, .max = hi, .doc = help                                                  \
    }
#define STR(key, field, text, help) ROW(key, KG_OPT_STR, field, text, 0, 0, help)
#define U32(key, field, text, lo, hi, help) ROW(key, KG_OPT_U32, field, text, lo, hi, help)
#define U64(key, field, text, lo, hi, help) ROW(key, KG_OPT_U64, field, text, lo, hi, help)
#define BOOL(key, field, text, help) ROW(key, KG_OPT_BOOL, field, text, 0, 0, help)
#define ENUM(key, field, text, words, help)                                                       \
    {                                                                                             \
        .name = key, .type = KG_OPT_ENUM, .offset = offsetof(struct kg_conf, field), .def = text, \
        .choices = words, .doc = help                                                             \
    }

/* The same, and an arm may override it. */
#define ARM_ROW(key, kind, field, text, lo, hi, words, help)                                       \
    {                                                                                              \
        .name = key, .type = kind, .flags = KG_OPT_ARM, .offset = offsetof(struct kg_conf, field), \
        .def = text, .min = lo, .max = hi, .choices = words, .doc = help                           \
    }
#define ARM_STR(key, field, text, help) ARM_ROW(key, KG_OPT_STR, field, text, 0, 0, NULL, help)
#define ARM_U32(key, field, text, lo, hi, help) \
    ARM_ROW(key, KG_OPT_U32, field, text, lo, hi, NULL, help)
#define ARM_ENUM(key, field, text, words, help) \
    ARM_ROW(key, KG_OPT_ENUM, field, text, 0, 0, words, help)

static const struct kg_opt model_rows[] = {
    STR("path", model_path, "",
        "Folder of the checkpoint (config.json, *.safetensors, tiktoken.model). Relative to the "
        "folder of the INI file. Empty only for backends that need no weights."),
    STR("draft", draft_path, "", "Folder of the drafter for speculation; empty for none."),
    {0},
};

static const struct kg_opt plugin_rows[] = {
    STR("dir", plugin_dir, "",
        "Folder of plugin files. Empty: plugins/ beside the binary, or the installed ones."),
    STR("exec", plugins[KG_KIND_EXEC], "cpu", "Backend: what computes."),
    STR("pool", plugins[KG_KIND_POOL], "unified", "How memory is shared between pages and states."),
    STR("sched", plugins[KG_KIND_SCHED], "fcfs", "Who runs in the next step."),
    ARM_STR("spec", plugins[KG_KIND_SPEC], "off",
            "Speculation: what to draft, how much to verify."),
    STR("comm", plugins[KG_KIND_COMM], "self", "Collectives between ranks."),
    STR("tier", plugins[KG_KIND_TIER], "off",
        "Where pages and states go that memory has no room for, to come back when they are wanted; "
        "off: they are forgotten."),
    {0},
};

static const struct kg_opt engine_rows[] = {
    U32("max_seqs", engine.max_seqs, "64", 1, 65536,
        "Most requests that hold memory and run at once. Unit: requests."),
    U32("max_requests", engine.max_requests, "1024", 1, 1048576,
        "Most requests in the engine, waiting ones included; beyond it 503. Unit: requests."),
    U32("step_tokens", engine.step_tokens, "512", 1, 1048576,
        "Most rows computed in one step, prompts and answers together. Larger: more throughput; "
        "smaller: steadier time between output tokens. Unit: tokens."),
    U32("prefill_chunk", engine.prefill_chunk, "256", 1, 1048576,
        "Most prompt tokens of one request in a step. Unit: tokens."),
    U32("max_context", engine.max_context, "0", 0, 16777216,
        "Most tokens of a request, prompt and answer; 0: the model's own limit. Unit: tokens."),
    STR("cost", cost, "off",
        "Step time as speculation and eviction see it: off; measured at start, which takes a "
        "second or two, and kept up to date; or a file that kedge check --write-cost wrote, which "
        "makes decisions independent of the clock."),
    U32("max_draft", engine.max_draft, "0", 0, 64,
        "Draft rows of a request to keep room for, so that speculation can be switched on while "
        "the server runs; 0: what [plugins] spec asks for. Unit: tokens."),
    BOOL("debug", engine.debug, "no",
         "Check pool and scheduler after every step and poison freed units. Slow."),
    {0},
};

static const struct kg_opt memory_rows[] = {
    U64("bytes", engine.arena_bytes, "256m", 4096, 1099511627776.0,
        "Memory for pages and states, per rank; weights come on top. Unit: bytes."),
    U32("page_tokens", engine.page_tokens, "64", 1, 65536,
        "Tokens of a page; the pool may raise it, kedge check prints the effective value. "
        "Unit: tokens."),
    {0},
};

static const struct kg_opt prefix_rows[] = {
    BOOL("enabled", engine.prefix, "yes", "Reuse pages and states of equal prompt beginnings."),
    ARM_ENUM("checkpoint", engine.checkpoint, "auto", "off|interval|boundary|branch|auto",
             "Where states are kept for later requests."),
    ARM_U32(
        "interval", engine.interval, "4096", 1, 16777216,
        "Distance of checkpoints under interval, rounded down to pages; under auto the first of "
        "those "
        "that double. Unit: tokens."),
    U64("ghost_bytes", engine.ghost_bytes, "32m", 0, 1099511627776.0,
        "Most memory for nodes whose units were evicted. Unit: bytes."),
    U64("tier_step_bytes", engine.tier_step_bytes, "512m", 0, 1099511627776.0,
        "Most that is copied to the tier in one step, and as much back; one unit always. Larger: "
        "less "
        "is dropped, hits are there sooner; smaller: steadier steps. Unit: bytes."),
    {0},
};

static const struct kg_opt admission_rows[] = {
    ARM_ENUM(
        "lifetime", engine.lifetime, "prompt", "prompt|max|expected",
        "How much of a request is promised when it is admitted: its prompt (growth may preempt), "
        "prompt and max_tokens, or what requests like it used."),
    U32("quantile", engine.quantile, "90", 1, 100,
        "Under expected: share of the observed answers that are no longer than what is promised. "
        "Unit: percent."),
    U32("max_wait_ms", engine.max_wait_ms, "2000", 0, 3600000,
        "A request that waited longer is not overtaken by younger ones; 0: no such rule. "
        "Unit: ms."),
    U32("queue_timeout_ms", engine.queue_timeout_ms, "0", 0, 86400000,
        "A request that waited longer is answered with 503; 0: it waits. Unit: ms."),
    {0},
};

static const struct kg_opt spec_rows[] = {
    ARM_ENUM(
        "accept", engine.accept, "coupling", "coupling|rejection|block",
        "How drafts are accepted. coupling: output is equal to plain decoding, bit for bit. "
        "rejection and block accept more; at temperature above 0 their output is equal only in "
        "distribution and not reproducible from the seed."),
    {0},
};

static const struct kg_opt parallel_rows[] = {
    U32("tp", tp, "1", 1, 1024, "Ranks that share each layer. Unit: processes."),
    U32("ep", ep, "1", 1, 1024,
        "Blocks of whole experts, dealt to the tp ranks; a divisor of tp. tp / ep ranks share the "
        "width of each expert of a block; 1: all ranks share all experts. Unit: blocks."),
    BOOL("allow_idle_rank", allow_idle_rank, "no",
         "A rank may be left with padding only: it computes zeros."),
    U32("sp_rows", sp_rows, "0", 0, 65536,
        "Steps of at least so many rows leave each rank its share of the rows between two blocks, "
        "for norms and residuals: the same bits. 0: never. Unit: rows."),
    U32("timeout_ms", rank_timeout_ms, "10000", 10, 3600000,
        "What a rank may take in a collective, or behind the first rank in a step, before the "
        "group "
        "is given up. Unit: ms."),
    U64("symm_bytes", symm_bytes, "64m", 65536, 1099511627776.0,
        "Most memory of one rank that the others may read. Unit: bytes."),
    {.name = "comm_times",
     .type = KG_OPT_STR,
     .flags = KG_OPT_PATH,
     .offset = offsetof(struct kg_conf, comm_times),
     .def = "",
     .doc = "File with measured times of collectives, from which kedge check says what a step's "
            "messages take; kedge bench comm --out writes one. Relative to the folder of the INI "
            "file."},
    {0},
};

static const struct kg_opt cluster_rows[] = {
    U32("nodes", nodes, "1", 1, 1024, "Machines the ranks run on. Unit: machines."),
    ENUM("fabric", fabric, "none", "none|nvlink|rdma|tcp", "What connects the machines."),
    BOOL("allow_slow_fabric", allow_slow_fabric, "no",
         "Start across machines without RDMA or NVLink all the same."),
    {0},
};

static const struct kg_opt lua_rows[] = {
    STR("script", lua_script, "",
        "Policy script with the hooks arrive, admit, window; empty for none. SIGHUP reads it "
        "again. Relative to the folder of the INI file."),
    ENUM("on_error", lua_on_error, "reject", "reject|admit",
         "What becomes of a request when arrive fails or is over its budget: 503, or accepted. A "
         "failing admit or window leaves the built-in rule."),
    U64("instructions", lua_instructions, "100000", 1000, 1000000000.0,
        "Most Lua instructions of one arrive call, and of all calls of one engine step; work of "
        "library functions counts by what it makes. Unit: instructions."),
    U64("arrive_us", lua_arrive_us, "2000", 100, 1000000.0,
        "Most time of one arrive call. Unit: us."),
    U64("step_us", lua_step_us, "1000", 100, 1000000.0,
        "Most time Lua takes of one engine step; past it the built-in rules answer. Not under a "
        "virtual clock, where instructions alone count. Unit: us."),
    {0},
};

static const struct kg_opt log_rows[] = {
    ENUM("level", log_level, "info", "error|warn|info|debug|trace", "Least level that is written."),
    STR("modules", log_modules, "",
        "Levels of single modules, for example \"http=debug,engine=trace\"."),
    {0},
};

static const struct kg_opt arms_rows[] = {
    STR("field", arms.field, "user",
        "What chooses the arm of a request, by its hash: user (of the body), tenant (as "
        "tenant_header says), request (its id: each by itself), or header:NAME. A request without "
        "the field is split by its id."),
    U64("seed", arms.seed, "1", 0, 0,
        "Of the hash. Another seed is another random split of the same clients."),
    BOOL("share_cache", arms.share_cache, "no",
         "Arms find each other's pages and states in the prefix cache. Yes: more is reused, and an "
         "arm's figures depend on what the others left there."),
    {0},
};

const struct kg_opt kg_arm_rows[] = {
    {.name = "share",
     .type = KG_OPT_F64,
     .offset = offsetof(struct kg_serve_arm, share),
     .def = "0",
     .min = 0,
     .max = 100,
     .doc = "Percentage of the keys that this arm gets; required, all arms add up to 100. "
            "POST /admin/arms changes it while the server runs."},
    {.name = "class",
     .type = KG_OPT_STR,
     .offset = offsetof(struct kg_serve_arm, class_name),
     .def = "",
     .doc = "Class of its requests for the policy script, unless arrive sets another; empty for "
            "none."},
    {0},
};

const struct kg_section kg_conf_sections[] = {
    {"server", kg_server_opts, offsetof(struct kg_conf, server), "Address and limits of HTTP."},
    {"model", model_rows, 0, "What is served."},
    {"plugins", plugin_rows, 0,
     "Which plugin does what: a name (unified or pool-unified) or a path to the file."},
    {"engine", engine_rows, 0, "Sizes of the step and of the queues."},
    {"memory", memory_rows, 0, "The arena that pages and states share."},
    {"prefix", prefix_rows, 0,
     "Reuse of earlier work: pages and states of equal prompt beginnings."},
    {"admission", admission_rows, 0, "When a waiting request may start."},
    {"spec", spec_rows, 0, "Rules of speculation that no plugin can change."},
    {"arms", arms_rows, 0,
     "How a server splits its requests among its [arm NAME] sections, see arms.md."},
    {"parallel", parallel_rows, 0, "Processes per model, on one machine."},
    {"cluster", cluster_rows, 0, "Machines. More than one is simulated only."},
    {"lua", lua_rows, 0, "Policy in Lua: who is let in, in what order, with what caps."},
    {"log", log_rows, 0, "Lines on stderr."},
    {0},
};
