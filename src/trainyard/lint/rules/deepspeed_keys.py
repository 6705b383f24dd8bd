"""The keys of a configuration that DeepSpeed 0.19.8 reads; a test compares them with the installed DeepSpeed."""

from __future__ import annotations

# Read at the top level (deepspeed/runtime/config.py and the modules it uses), and keys of Trainyard's own files.
TOP_LEVEL_KEYS = frozenset(
    {
        *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
        *("managed_gradient_accumulation", "optimizer", "scheduler", "fp16", "bf16", "bfloat16", "amp"),
        *("torch_autocast", "zero_optimization", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"),
        *("communication_data_type", "seq_parallel_communication_data_type", "prescale_gradients"),
        *("gradient_predivide_factor", "gradient_allreduce_op", "sparse_gradients", "graph_harvesting", "aio"),
        *("steps_per_print", "wall_clock_breakdown", "dump_state", "disable_allgather", "disable_python_gc"),
        *("memory_breakdown", "autotuning", "flops_profiler", "activation_checkpointing", "sparse_attention"),
        *("data_efficiency", "curriculum_learning", "tensorboard", "wandb", "comet", "csv_monitor", "comms_logger"),
        *("monitor_config", "elasticity", "eigenvalue", "progressive_layer_drop", "quantize_training", "nebula"),
        *("compression_training", "checkpoint", "data_types", "dataloader_drop_last", "hybrid_engine", "compile"),
        *("timers", "use_data_before_expert_parallelism", "tensor_parallel", "weight_quantization"),
        *("vocabulary_size", "check_overflow", "load_universal", "log_level", "inference", "pipeline"),
        *("sequence_parallel_size", "data_parallel_size", "mesh_param", "zero_quantized_weights", "data_types"),
        *("checkpoint_tag_validation", "expert_parallel", "train_iters", "_rendered", "_comment", "comment"),
    }
)
_OFFLOAD = {"device", "nvme_path", "buffer_count", "pin_memory"}
# The fields of DeepSpeed's pydantic models, which reject others.
NESTED_KEYS: dict[tuple[str, ...], frozenset[str]] = {
    ("zero_optimization",): frozenset(
        {
            *("stage", "contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "allgather_partitions"),
            *("use_multi_rank_bucket_allreduce", "allgather_bucket_size", "overlap_comm", "load_from_fp32_weights"),
            *("compute_grad_norm", "elastic_checkpoint", "offload_param", "offload_optimizer", "zenflow"),
            *("sub_group_size", "cpu_offload_param", "cpu_offload_use_pin_memory", "cpu_offload"),
            *("prefetch_bucket_size", "stage3_prefetch_bucket_size", "param_persistence_threshold"),
            *("stage3_param_persistence_threshold", "model_persistence_threshold"),
            *("stage3_model_persistence_threshold", "max_live_parameters", "stage3_max_live_parameters"),
            *("max_reuse_distance", "stage3_max_reuse_distance", "gather_16bit_weights_on_model_save"),
            *("stage3_gather_16bit_weights_on_model_save", "module_granularity_threshold"),
            *("stage3_module_granularity_threshold", "use_all_reduce_for_fetch_params"),
            *("stage3_use_all_reduce_for_fetch_params", "allgather_sequential", "stage3_allgather_sequential"),
            *("stage3_gather_fp16_weights_on_model_save", "ignore_unused_parameters", "legacy_stage1"),
            *("round_robin_gradients", "parameter_alignment", "zero_hpz_partition_size", "zero_quantized_weights"),
            *("zero_quantized_nontrainable_weights", "zero_quantized_gradients", "mics_shard_size"),
            *("mics_hierarchical_params_gather", "memory_efficient_linear", "pipeline_loading_checkpoint"),
            *("override_module_apply", "log_trace_cache_warnings", "enable_sanity_checks"),
            *("save_muon_momentum_buffer_in_memory", "leaf_module"),
        }
    ),
    ("zero_optimization", "offload_param"): frozenset({*_OFFLOAD, "buffer_size", "max_in_cpu"}),
    ("zero_optimization", "offload_optimizer"): frozenset(
        {*_OFFLOAD, "pipeline_read", "pipeline_write", "pipeline", "fast_init", "ratio", "super_offload"}
        | {"cpuadam_cores_perc"}
    ),
    ("bf16",): frozenset(
        {"enabled", "immediate_grad_update", "check_grad_overflow", "bf16_master_weights_and_grads"}
        | {"bf16_optimizer_states"}
    ),
    ("fp16",): frozenset(
        {
            *("enabled", "auto_cast", "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis"),
            *("consecutive_hysteresis", "min_loss_scale", "fp16_master_weights_and_grads"),
        }
    ),
}
_ADAM = frozenset(
    {
        *("lr", "betas", "eps", "weight_decay", "bias_correction", "amsgrad", "torch_adam", "adam_w_mode", "fused"),
        *("foreach", "maximize", "capturable", "differentiable", "set_grad_none", "fp32_optimizer_states"),
    }
)
_SGD = frozenset({"lr", "momentum", "weight_decay", "dampening", "nesterov"})
# DeepSpeed's optimizers with their settings; empty where those are not compared. Others may be PyTorch's.
OPTIMIZERS: dict[str, frozenset[str]] = {
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "SGD": _SGD,
    **dict.fromkeys(("Adagrad", "Lamb", "Lion", "Muon", "OneBitAdam", "OneBitLamb", "ZeroOneAdam"), frozenset[str]()),
}
# deepspeed/runtime/lr_schedules.py
_WARMUP = frozenset(
    {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "last_batch_iteration", "total_num_steps"}
)
SCHEDULERS: dict[str, frozenset[str]] = {
    "WarmupLR": _WARMUP,
    "WarmupDecayLR": _WARMUP,
    **dict.fromkeys(("WarmupCosineLR", "LRRangeTest", "OneCycle"), frozenset[str]()),
}
# What other libraries call these settings.
RENAMED = {
    "learning_rate": "lr",
    "epsilon": "eps",
    "total_steps": "total_num_steps",
    "warmup_steps": "warmup_num_steps",
}
