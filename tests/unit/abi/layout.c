/*
 * The layout of every public struct, written down: a change of the ABI that nobody meant does not
 * compile. Who means one raises the kind's minor (something was appended) or major, and edits the
 * line here in the same commit. For LP64 machines, the only ones supported.
 */
#include <kedge/abi.h>
#include <kedge/comm.h>
#include <kedge/exec.h>
#include <kedge/host.h>
#include <kedge/pool.h>
#include <kedge/sched.h>
#include <kedge/spec.h>
#include <kedge/tier.h>
#include <kedge/types.h>

#define SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), #type " changed size")
#define AT(type, field, bytes) \
    _Static_assert(offsetof(struct type, field) == (bytes), #type "." #field " moved")

SIZE(kg_error, 504);
AT(kg_error, text, 4);

SIZE(kg_opt, 64);
AT(kg_opt, type, 8);
AT(kg_opt, flags, 12);
AT(kg_opt, offset, 16);
AT(kg_opt, def, 24);
AT(kg_opt, min, 32);
AT(kg_opt, max, 40);
AT(kg_opt, choices, 48);
AT(kg_opt, doc, 56);

SIZE(kg_metric, 24);
AT(kg_metric, type, 8);
AT(kg_metric, doc, 16);

SIZE(kg_plugin, 96);
AT(kg_plugin, kind, 4);
AT(kg_plugin, size, 8);
AT(kg_plugin, major, 16);
AT(kg_plugin, minor, 20);
AT(kg_plugin, needs_minor, 24);
AT(kg_plugin, reserved, 28);
AT(kg_plugin, name, 32);
AT(kg_plugin, version, 40);
AT(kg_plugin, summary, 48);
AT(kg_plugin, caps, 56);
AT(kg_plugin, opts, 64);
AT(kg_plugin, conf_size, 72);
AT(kg_plugin, metrics, 80);
AT(kg_plugin, ops, 88);

SIZE(kg_cell, 8);

SIZE(kg_host, 64);
AT(kg_host, ctx, 8);
AT(kg_host, alloc, 16);
AT(kg_host, free, 24);
AT(kg_host, log, 32);
AT(kg_host, now_ns, 40);
AT(kg_host, cells, 48);
AT(kg_host, debug, 56);
AT(kg_host, reserved, 60);

SIZE(kg_pool_geom, 56);
AT(kg_pool_geom, arena_bytes, 8);
AT(kg_pool_geom, token_bytes, 16);
AT(kg_pool_geom, state_part_bytes, 24);
AT(kg_pool_geom, n_state_parts, 32);
AT(kg_pool_geom, page_tokens, 36);
AT(kg_pool_geom, page_tokens_align, 40);
AT(kg_pool_geom, align, 44);
AT(kg_pool_geom, max_seqs, 48);
AT(kg_pool_geom, reserved, 52);

SIZE(kg_pool_layout, 96);
AT(kg_pool_layout, arena_bytes, 8);
AT(kg_pool_layout, base, 16);
AT(kg_pool_layout, stride, 32);
AT(kg_pool_layout, unit_bytes, 48);
AT(kg_pool_layout, max_slots, 64);
AT(kg_pool_layout, max_units, 72);
AT(kg_pool_layout, page_tokens, 80);
AT(kg_pool_layout, slots_per_state, 84);
AT(kg_pool_layout, parts_per_slot, 88);
AT(kg_pool_layout, caps, 92);

SIZE(kg_pool_bytes, 80);
AT(kg_pool_bytes, cached, 16);
AT(kg_pool_bytes, pinned, 32);
AT(kg_pool_bytes, holes, 40);
AT(kg_pool_bytes, gap, 48);
AT(kg_pool_bytes, padding, 56);
AT(kg_pool_bytes, arena, 64);
AT(kg_pool_bytes, promised, 72);

SIZE(kg_shortage, 24);
AT(kg_shortage, reserved, 4);
AT(kg_shortage, bytes, 8);
AT(kg_shortage, evict, 16);

SIZE(kg_move, 16);
AT(kg_move, from, 4);
AT(kg_move, to, 8);
AT(kg_move, id, 12);

SIZE(kg_table_change, 12);
AT(kg_table_change, entry, 4);
AT(kg_table_change, slot, 8);

SIZE(kg_pool_ops, 160);
AT(kg_pool_ops, open, 8);
AT(kg_pool_ops, close, 16);
AT(kg_pool_ops, table, 24);
AT(kg_pool_ops, grant_open, 32);
AT(kg_pool_ops, grant_extend, 40);
AT(kg_pool_ops, grant_close, 48);
AT(kg_pool_ops, shortfall, 56);
AT(kg_pool_ops, take, 64);
AT(kg_pool_ops, give, 72);
AT(kg_pool_ops, own, 80);
AT(kg_pool_ops, pin, 88);
AT(kg_pool_ops, unpin, 96);
AT(kg_pool_ops, moves, 104);
AT(kg_pool_ops, bytes, 112);
AT(kg_pool_ops, n_used, 120);
AT(kg_pool_ops, check, 128);
AT(kg_pool_ops, compact, 136);
AT(kg_pool_ops, loose, 144);
AT(kg_pool_ops, classes, 152);

SIZE(kg_exec_open, 80);
AT(kg_exec_open, model_path, 8);
AT(kg_exec_open, draft_path, 16);
AT(kg_exec_open, comm_ops, 24);
AT(kg_exec_open, comm, 32);
AT(kg_exec_open, rank, 40);
AT(kg_exec_open, world, 44);
AT(kg_exec_open, max_seqs, 48);
AT(kg_exec_open, max_rows, 52);
AT(kg_exec_open, max_context, 56);
AT(kg_exec_open, max_draft, 60);
AT(kg_exec_open, ep, 64);
AT(kg_exec_open, sp_rows, 68);
AT(kg_exec_open, allow_idle_rank, 72);

SIZE(kg_exec_desc, 176);
AT(kg_exec_desc, caps, 8);
AT(kg_exec_desc, token_bytes, 16);
AT(kg_exec_desc, draft_token_bytes, 24);
AT(kg_exec_desc, state_part_bytes, 32);
AT(kg_exec_desc, recurrent_bytes, 40);
AT(kg_exec_desc, weight_bytes, 48);
AT(kg_exec_desc, scratch_bytes, 56);
AT(kg_exec_desc, n_state_parts, 64);
AT(kg_exec_desc, page_tokens_align, 68);
AT(kg_exec_desc, align, 72);
AT(kg_exec_desc, n_layers, 76);
AT(kg_exec_desc, n_mla_layers, 80);
AT(kg_exec_desc, n_kda_layers, 84);
AT(kg_exec_desc, vocab, 88);
AT(kg_exec_desc, max_context, 92);
AT(kg_exec_desc, max_orders, 96);
AT(kg_exec_desc, draft_block, 100);
AT(kg_exec_desc, max_draft, 104);
AT(kg_exec_desc, family, 112);
AT(kg_exec_desc, kernels, 120);
AT(kg_exec_desc, math, 128);
AT(kg_exec_desc, record_bytes, 136);
AT(kg_exec_desc, rewind_bytes, 144);
AT(kg_exec_desc, rewind, 152);
AT(kg_exec_desc, draft_weight_bytes, 160);
AT(kg_exec_desc, draft_q_bytes, 168);

SIZE(kg_sampling, 128);
AT(kg_sampling, top_p, 4);
AT(kg_sampling, min_p, 8);
AT(kg_sampling, repetition_penalty, 12);
AT(kg_sampling, frequency_penalty, 16);
AT(kg_sampling, presence_penalty, 20);
AT(kg_sampling, top_k, 24);
AT(kg_sampling, n_logprobs, 28);
AT(kg_sampling, want_logprob, 32);
AT(kg_sampling, min_tokens, 36);
AT(kg_sampling, n_stop_ids, 40);
AT(kg_sampling, ignore_eos, 44);
AT(kg_sampling, stop_ids, 48);
AT(kg_sampling, seed, 112);
AT(kg_sampling, accept, 120);
AT(kg_sampling, reserved, 124);

SIZE(kg_order, 8);
AT(kg_order, unit, 4);

SIZE(kg_seq, 104);
AT(kg_seq, epoch, 4);
AT(kg_seq, id, 8);
AT(kg_seq, flags, 16);
AT(kg_seq, past, 20);
AT(kg_seq, n_rows, 24);
AT(kg_seq, n_draft, 28);
AT(kg_seq, tokens, 32);
AT(kg_seq, pages, 40);
AT(kg_seq, n_pages, 48);
AT(kg_seq, state, 52);
AT(kg_seq, state_src, 56);
AT(kg_seq, n_orders, 60);
AT(kg_seq, orders, 64);
AT(kg_seq, history, 72);
AT(kg_seq, n_history, 80);
AT(kg_seq, output_start, 84);
AT(kg_seq, sampling, 88);
AT(kg_seq, left, 96);
AT(kg_seq, force_accept, 100);

SIZE(kg_batch, 32);
AT(kg_batch, step, 8);
AT(kg_batch, seqs, 16);
AT(kg_batch, n_seqs, 24);
AT(kg_batch, n_rows, 28);

SIZE(kg_logprob, 8);
AT(kg_logprob, logprob, 4);

SIZE(kg_seq_result, 64);
AT(kg_seq_result, slot, 8);
AT(kg_seq_result, epoch, 12);
AT(kg_seq_result, flags, 16);
AT(kg_seq_result, past, 20);
AT(kg_seq_result, n_accepted, 24);
AT(kg_seq_result, n_tokens, 28);
AT(kg_seq_result, tokens, 32);
AT(kg_seq_result, logprobs, 40);
AT(kg_seq_result, echo, 48);
AT(kg_seq_result, logits, 56);

SIZE(kg_result, 56);
AT(kg_result, step, 8);
AT(kg_result, step_ns, 16);
AT(kg_result, n_seqs, 24);
AT(kg_result, reserved, 28);
AT(kg_result, seqs, 32);
AT(kg_result, draft_ns, 40);
AT(kg_result, commit_ns, 48);

SIZE(kg_draft, 16);
AT(kg_draft, n, 4);
AT(kg_draft, survival, 8);

SIZE(kg_view, 48);
AT(kg_view, kind, 8);
AT(kg_view, layer, 12);
AT(kg_view, dtype, 16);
AT(kg_view, entry, 20);
AT(kg_view, offset, 24);
AT(kg_view, token_stride, 32);
AT(kg_view, n, 40);

SIZE(kg_exec_ops, 176);
AT(kg_exec_ops, open, 8);
AT(kg_exec_ops, close, 16);
AT(kg_exec_ops, describe, 24);
AT(kg_exec_ops, bind, 32);
AT(kg_exec_ops, apply, 40);
AT(kg_exec_ops, submit, 48);
AT(kg_exec_ops, wait, 56);
AT(kg_exec_ops, drop, 64);
AT(kg_exec_ops, copy, 72);
AT(kg_exec_ops, zero, 80);
AT(kg_exec_ops, poison, 88);
AT(kg_exec_ops, read, 96);
AT(kg_exec_ops, write, 104);
AT(kg_exec_ops, profile, 112);
AT(kg_exec_ops, now, 120);
AT(kg_exec_ops, draft, 128);
AT(kg_exec_ops, advance, 136);
AT(kg_exec_ops, views, 144);
AT(kg_exec_ops, profile_draft, 152);
AT(kg_exec_ops, messages, 160);
AT(kg_exec_ops, dealt, 168);

SIZE(kg_dealt_row, 56);
AT(kg_dealt_row, ranks, 8);
AT(kg_dealt_row, idle, 12);
AT(kg_dealt_row, n, 16);
AT(kg_dealt_row, each, 24);
AT(kg_dealt_row, last, 32);
AT(kg_dealt_row, last_zero, 40);
AT(kg_dealt_row, all_zero, 48);

SIZE(kg_dealt, 768);
AT(kg_dealt, ranks, 8);
AT(kg_dealt, rows, 24);
AT(kg_dealt, first_weights, 696);
AT(kg_dealt, symm_bytes, 752);
AT(kg_dealt, everywhere, 760);

SIZE(kg_message, 48);
AT(kg_message, op, 8);
AT(kg_message, dtype, 12);
AT(kg_message, count, 16);
AT(kg_message, times, 24);
AT(kg_message, ranks, 28);
AT(kg_message, us, 32);
AT(kg_message, how, 40);

SIZE(kg_bootstrap, 48);
AT(kg_bootstrap, ctx, 8);
AT(kg_bootstrap, all_gather, 16);
AT(kg_bootstrap, send_fd, 24);
AT(kg_bootstrap, recv_fd, 32);
AT(kg_bootstrap, barrier, 40);

SIZE(kg_comm_open, 56);
AT(kg_comm_open, rank, 8);
AT(kg_comm_open, world, 12);
AT(kg_comm_open, boot, 16);
AT(kg_comm_open, symm_bytes, 24);
AT(kg_comm_open, n_channels, 32);
AT(kg_comm_open, device, 36);
AT(kg_comm_open, timeout_ns, 40);
AT(kg_comm_open, memory, 48);

SIZE(kg_coll, 56);
AT(kg_coll, dtype, 4);
AT(kg_coll, count, 8);
AT(kg_coll, in, 16);
AT(kg_coll, out, 24);
AT(kg_coll, stream, 32);
AT(kg_coll, root, 40);
AT(kg_coll, reserved, 44);
AT(kg_coll, counts, 48);

SIZE(kg_comm_ops, 136);
AT(kg_comm_ops, open, 8);
AT(kg_comm_ops, close, 16);
AT(kg_comm_ops, alloc_symm, 24);
AT(kg_comm_ops, seal, 32);
AT(kg_comm_ops, all_reduce, 40);
AT(kg_comm_ops, reduce_scatter, 48);
AT(kg_comm_ops, all_gather, 56);
AT(kg_comm_ops, all_to_all, 64);
AT(kg_comm_ops, broadcast, 72);
AT(kg_comm_ops, barrier, 80);
AT(kg_comm_ops, poll, 88);
AT(kg_comm_ops, abort, 96);
AT(kg_comm_ops, progress_dump, 104);
AT(kg_comm_ops, choose, 112);
AT(kg_comm_ops, caps, 120);
AT(kg_comm_ops, watch, 128);

SIZE(kg_sched_req, 48);
AT(kg_sched_req, priority, 4);
AT(kg_sched_req, id, 8);
AT(kg_sched_req, tenant, 16);
AT(kg_sched_req, arrival_ns, 24);
AT(kg_sched_req, n_prompt, 32);
AT(kg_sched_req, n_computed, 36);
AT(kg_sched_req, decoding, 40);
AT(kg_sched_req, paused, 44);

SIZE(kg_sched_item, 8);
AT(kg_sched_item, n_tokens, 4);

SIZE(kg_sched_view, 72);
AT(kg_sched_view, now_ns, 8);
AT(kg_sched_view, step_tokens, 16);
AT(kg_sched_view, prefill_chunk, 20);
AT(kg_sched_view, decode_rows, 24);
AT(kg_sched_view, n_slots, 28);
AT(kg_sched_view, running, 32);
AT(kg_sched_view, n_running, 40);
AT(kg_sched_view, n_waiting, 44);
AT(kg_sched_view, waiting, 48);
AT(kg_sched_view, admit, 56);
AT(kg_sched_view, ctx, 64);

SIZE(kg_sched_ops, 64);
AT(kg_sched_ops, open, 8);
AT(kg_sched_ops, close, 16);
AT(kg_sched_ops, add, 24);
AT(kg_sched_ops, remove, 32);
AT(kg_sched_ops, served, 40);
AT(kg_sched_ops, plan, 48);
AT(kg_sched_ops, check, 56);

SIZE(kg_cost, 32);
AT(kg_cost, ctx, 8);
AT(kg_cost, step_ns, 16);
AT(kg_cost, draft_ns, 24);

SIZE(kg_spec_seq, 48);
AT(kg_spec_seq, slot, 8);
AT(kg_spec_seq, context, 12);
AT(kg_spec_seq, max_draft, 16);
AT(kg_spec_seq, n_drafted, 20);
AT(kg_spec_seq, greedy, 24);
AT(kg_spec_seq, n_history, 28);
AT(kg_spec_seq, history, 32);
AT(kg_spec_seq, survival, 40);

SIZE(kg_spec_view, 40);
AT(kg_spec_view, seqs, 8);
AT(kg_spec_view, n_seqs, 16);
AT(kg_spec_view, other_rows, 20);
AT(kg_spec_view, rows_left, 24);
AT(kg_spec_view, cap, 28);
AT(kg_spec_view, cost, 32);

SIZE(kg_spec_seen, 48);
AT(kg_spec_seen, slot, 8);
AT(kg_spec_seen, n_verified, 12);
AT(kg_spec_seen, n_accepted, 16);
AT(kg_spec_seen, n_tokens, 20);
AT(kg_spec_seen, greedy, 24);
AT(kg_spec_seen, ended, 28);
AT(kg_spec_seen, accept, 32);
AT(kg_spec_seen, tokens, 40);

SIZE(kg_spec_ops, 80);
AT(kg_spec_ops, open, 8);
AT(kg_spec_ops, close, 16);
AT(kg_spec_ops, block, 24);
AT(kg_spec_ops, cap, 32);
AT(kg_spec_ops, choose, 40);
AT(kg_spec_ops, observe, 48);
AT(kg_spec_ops, check, 56);
AT(kg_spec_ops, draft, 64);
AT(kg_spec_ops, want, 72);

SIZE(kg_tier_key, 24);
AT(kg_tier_key, length, 16);
AT(kg_tier_key, kind, 20);

SIZE(kg_tier_geom, 40);
AT(kg_tier_geom, unit_bytes, 8);
AT(kg_tier_geom, copy_bytes, 24);

SIZE(kg_tier_ops, 80);
AT(kg_tier_ops, open, 8);
AT(kg_tier_ops, close, 16);
AT(kg_tier_ops, put, 24);
AT(kg_tier_ops, has, 32);
AT(kg_tier_ops, get, 40);
AT(kg_tier_ops, drop, 48);
AT(kg_tier_ops, hold, 56);
AT(kg_tier_ops, bytes, 64);
AT(kg_tier_ops, check, 72);
