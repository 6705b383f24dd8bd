"""Write docs/estimates.md, predicted against published for every row: `python docs/generate_estimates.py [--check]`.

Also the intervals that the command prints: src/trainyard/plan/estimate/intervals.csv, from the rows held out.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from published_trainings import (
    FIXED_TIME_ROUND,
    LAST_MEMORY_ROUND,
    LAST_TIME_ROUND,
    MEASURED,
    OWN_ROUND,
    UNSEEN_MEMORY_ROUND,
    UNSEEN_ROUND,
    HeldOut,
    Published,
    held_out_trainings,
    median_time_error,
    published_trainings,
    rows_of,
    timed_trainings,
)
from trainyard.plan.estimate.compute import Efficiency, efficiency_curves
from trainyard.plan.estimate.image_models import ImageModel
from trainyard.plan.estimate.intervals import INTERVALS_FILE, KINDS, Interval
from trainyard.plan.estimate.memory import FOREACH
from trainyard.plan.estimate.step_time import samples_per_second_per_gpu, step_time_of
from trainyard.plan.estimate.training import TrainingShape, machines_of_gpu

PAGE = Path(__file__).parent / "estimates.md"
# What comparisons with the model of their day said; the model of today cannot repeat them.
_FEWEST = 9
"""Rows that an interval of memory needs."""
_MET = {True: "met", False: "**missed**"}
EARLIER = Path(__file__).parent / "earlier_estimates.csv"

_INTRODUCTION = """# Predicted against published

Made by `python docs/generate_estimates.py`: do not edit.

What [`trainyard estimate`](plan.md) says of trainings that others published, and of some of our own, misses included.
The rows are those of [`held_out_trainings.csv`](held_out_trainings.csv) and of
[`published_trainings.csv`](published_trainings.csv); each has its source. To the first no share of peak is fitted but
that of a T4 in fp32 (six rows of round 10), and attention's on Hopper and Blackwell. For each GPU generation the share
of its peak that a matrix product reaches is fitted to the rows marked *fit* by
`python benchmarks/efficiency_curves.py`, or taken from a measurement; the rest of the model is formulas and data
sheets. An error of a step's time, or of memory, is predicted / published - 1: a negative one is too optimistic. The
network is that of the machines a GPU is usually in, unless the row says otherwise.
"""

_LAST = """## First predictions: round {number}

Round {number} has {time_rows} published trainings with a rate of steps and {memory_rows} with a memory figure, from
{documents} files and threads, none of them used before, of {places} repositories and sites. Unlike the rounds before,
it has no rate of a whole training, with its evaluations and checkpoints, and no training of which two or more settings
would have to be assumed. The formulas of that hour (7c6db56f) were written without its values, and what they predict
was committed (d2857489) before the values were entered in the table. Those of memory are still today's. Those of time
have [changed since](#what-was-changed-after-round-11): attention on Hopper and Blackwell, and three corrections; no
round has been predicted by them yet, and by them round {number}, which they have seen, has a median of {today}
within 25 %.

{bars}

- Most trainings took longer than predicted (middle error {middle}).
- Nearly two fifths of the rates are of V100, which earlier rounds are rich in: these {volta_rows} have a median of
  {volta} within 25 %, the others of {others}. Each project counting the same, whatever its number of rows,
  the middle of their medians is {of_places}.
- Eight rows are other versions of a table that round 1 has, with other figures; without them the median is
  {without_versions} within 25 %.
- The adapters are of three projects. There is no QLoRA, and none on A100 or a GPU for graphics.
- Of one document four rows were left out before the predictions, since two of their settings would have been assumed.
- Tables show settings and values together, so that values were seen while rows were described. None was chosen or left
  out by its value; [what was read and not taken](trainings_left_out.csv) is listed.

{far} rates are off by more than 25 %. Likely causes of the larger errors, none of them measured on a GPU yet:

- prime-rl on B200 (6 rows, -43 % to -63 %) and on H100 and H200 (-15 % to -30 %), with rows of 16,384 tokens and more:
  FlashAttention-2 reaches a smaller share of these GPUs' peaks than other products do, and was given the same.
- Llama 3 8B fine-tuned by NeMo on packed questions (6 rows, 30 % to 51 % too slow): attention stays within samples much
  shorter than the row, whose length is not stated.
- EfficientNet in fp32 on V100 (5 rows, -30 % to -49 %), as in round 10.
- BERT in fp32 on A100 (2 rows, -24 % and -29 %) beside others within 4 %: which attention they ran is known by their
  date only. ResNet-50 on A100 (3 rows, -25 % to -29 %): TF32 or the memory format.
- Memory of ResNet-50 with a batch of 256 (2 rows, -53 %): cuDNN may take more room to work in than 1 GB.
"""

_TENTH = """{heading} round 10

Round 10 has {time_rows} published trainings with a rate and {memory_rows} with a memory figure, from {documents} files
and threads, none of them used before, of {places} repositories and sites. The formulas of that day (730f7295) were
written without its values, and what they predict was committed (47038a5f) before the values were entered in the table.
Those of memory are still today's. Those of time have [changed since](#what-was-changed-after-round-10){unseen}.
By them round 10, which they have seen, has a median of {tenth_today} within 25 %.

{bars}

- Most trainings took longer than predicted (middle error {middle}). About as many memory figures are too low as
  too high (middle error {middle_memory}).
- Without the {unsure_rows} rows whose notes leave something open, the median is {sure} within 25 % for time, and
  {sure_memory} within 15 % for memory. Of these
  four only the median of memory meets its bar. Not stated, not known or assumed are recomputation (12 rows), whether
  attention is one kernel (12) and which it is (3), whether A100 are SXM (12, 8 of them on A100), the GPU (7), which
  V100 (4), the number of GPUs (3), the network (5) and its Gbit/s (4). Defaults are the micro-batch of 14 rows and the
  recomputation of 3: with these 17 rows the median is {stated} within 25 % for time, and
  {stated_memory} within 15 % for memory.
- Without the {whole_rows} rows whose source gives the time of a whole training, with its evaluations, checkpoints and
  the loading of its data, the median is {steps} within 25 % for time. `estimate` is of steps.
- The rows of memory are mostly of decoders that are trained as a whole. Adapters are four rows of one repository,
  without QLoRA, and images are twelve of ViT and one of ResNet. Of time there is no row of adapters.
- Rates are of the 90 rows that were gathered for time, and of those 17 gathered for memory whose source says which GPU
  and how many, and whose fp32 cannot be TF32. This was decided before a value was entered.
- Tables show settings and values together, so that values were seen while rows were described. None was chosen or left
  out by its value; [what was read and not taken](trainings_left_out.csv) is listed.

{far} rates are off by more than 25 %. Likely causes of the larger errors, none of them measured on a GPU yet:

- ViT in fp32 on T4 (6 rows, -31 % to -43 %): under their limit of 70 W its clock falls, which the estimate knew of
  tensor cores only. In fp16 the same trainings are within about 8 %.
- StarCoder 1B on eight A6000 (3 rows, -62 % to -64 %) and 7B on A100 (-60 %); the other eight rows of the document are
  within about 12 %. The first three may lack a bridge, and exchange after each micro-batch.
- EfficientNet in fp32 on V100 (6 rows, -27 % to -46 %) beside ResNet-101 and 152 (25 % and 27 % too slow), whose
  convolutions of 3 x 3 take fewer multiplications by Winograd's algorithm.
- nanoGPT compiled, with attention of many operations (51 % and 61 % too slow) and of one kernel (-29 % and -32 %): the
  source says neither its micro-batch nor its length.
- GPT-2 with one row of 1,024 tokens on H100 (65 % and 139 % too slow): its Python starts operations in half the time
  or less that was measured elsewhere.
- Llama 2 70B (-88 %), whose source gives the time of a training and its evaluations; the 300 million parameters of a
  Llama on 32 GH200 (-65 %); a functional test of Megatron-LM (-66 %), and BERT 110M with 512 tokens a micro-batch
  (-64 %), which Python or the loading of data may hold up.
- Memory with micro-batches of 16 and 64 rows of compiled GPT-2 (44 % and 53 % too high): when the prediction
  is compiled too, the loss may keep fewer copies of the logits.
"""

_EARLIER = """
Of the rounds before, each pair is the median and the share within 25 %, of memory within 15 %.
Round 9, by the formulas before, met the bars of time's median and kinds: {ninth} for time and {ninth_memory} for
memory. Round 8, by those before these, missed every bar but that of kinds: {eighth} for time and {eighth_memory} for
memory. Today's formulas, which have seen both, have {ninth_today} and
{ninth_memory_today} for round 9, {eighth_today} and {eighth_memory_today} for round 8.
Their largest errors remain: EfficientNet and MosaicGPT with torch 1.12 take longer than predicted, as do torchtitan's
Llama 3 8B on H100 and MI300X, ViT with DDP over Ethernet and nanoGPT's model of characters; four rows of GPT-2 written
from scratch, described as that of transformers, take two fifths of the predicted time; the rate of Swin includes
loading its data; and compiling ResNet-50 gained 1 %, where 28 % is predicted.
"""

_UNSEEN = """
## Predicted before they were compared

The rows of `held_out_trainings.csv` were described from their sources and predicted before anything was compared. Once
values are entered, the first predictions of their rows never change; *today* is what today's formulas predict. The
formulas of time were changed after rounds 2 and 7 to 11, and those of memory after rounds 5, 7 (for two things that
no row of the other rounds has), 8 and 9. So the first predictions of time of rounds 3 to 7 and of each round since are
by five versions, and [those of memory](#memory) of rounds 6 and 7 by that of round 5.

**The bars are a median of 15 % and 75 % within 25 %. First predictions of rounds 3 to 11 miss both, {every_first}.
Those of rounds 3 to 7 missed both, {first}: trainings that others published, rounds 3 to 6, have {published}, and our
own loop on an H200, round 7, has {own}. By today's formulas rounds 1 to 11 have {today} and rounds 3 to 11
{late_today}: that both meet the bars proves nothing, because the formulas have seen these rows. Every kind has a median
of at most 25 % by them.** Of our own 34 trainings all but one took longer than first predicted: decoders by a quarter,
adapters by two fifths, small micro-batches by half, encoders and images on tensor cores about twice as long. They keep
weights in fp32 under autocast and choose deterministic algorithms, the defaults of Trainyard's steps; `plan --from-run`
corrects a project's estimates by what a run took.

What changed in the formulas of time after round 7, by what the software does and not by a fit:

- Under autocast each weight is cast in the forward pass and its gradient in the backward pass, with 6 bytes a parameter
  each, and once more where layers are computed again. Frozen weights have no gradients, and weights of 4 bits are not
  cast.
- Clipping reads the gradient once more for its norm, 4 bytes a parameter. Rows do not say whether they clip; nearly all
  do, and all are counted so.
- With deterministic algorithms attention is FlashAttention-2's, whose backward pass can be deterministic, and which
  [reaches 35 % of an H100's peak](https://arxiv.org/abs/2407.08608); of Blackwell it uses as little of what is new.
  This is a setting of a training (`--no-deterministic`), which only the rows of round 7 have.

With these changes and those after rounds 8 to 11, round 7 has today {own_today}: {own_kinds}.
Rounds 1 to 6 have {others}.
Images on tensor cores stay far off; cuDNN's deterministic convolutions are a likely cause, and are not counted.

### What was changed after round 8

Time, by mechanisms that each have a source; the shares of peak were fitted again to the rows marked *fit*:

- The GPU waits for Python for 20 ms a step: eight of our own trainings whose pace Python sets take 10 to 38 ms beside
  the measured time of their layers. For compiled and fused software, and for images, which are loaded ahead, a tenth is
  counted.
- Each operation takes a GPU 6 µs beside what it computes and moves; an empty kernel takes 3 µs of them.
- The last round of tiles of a matrix product fills, on average, half of a GPU, which matters most for small products.
  Each matrix of a layer is a product of its own.
- Layers that are computed again are started again, by Python too.
- AdamW in bf16 moves half as many bytes as in fp32, and such gradients are exchanged in 16 bits; torch's `foreach`
  moves as much as eager AdamW.
- RTX 3090 and A10G multiply at half their rate to sum in fp32, and have the share that was measured on an Ada GPU that
  does the same. Other Ampere GPUs have a rate that their memory does not keep up with.
- Of the 22 rows that Hopper's share was fitted to, 20 came from one document of 2023. It is now fitted to all documents
  on Hopper with no row held out, each counting the same: 0.635 and 0.065 a year, instead of 0.585 and 0.1.

The three numbers were also chosen with one document left out at a time (0, 5, 10, 15 or 20 ms; 0, 3 or 6 µs; none, half
a wave of 128 x 128 or of 128 x 256), by a script that is not in the repository: the mean error of the document left
out, as a logarithm, fell from 0.230 to 0.180, and 55 of 57 documents chose the same numbers. The smaller wave is used
nevertheless: with the larger one products of 2,048 tokens on H100 are too slow.

Examined and not changed: fp8 on MI300X, exchange over TCP (two rows), compiled ResNet (one row), torchtitan on 8 H100,
which may be those with HBM2e and a limit of 500 W, and the description of GPT-2 from scratch.

Memory of a device: what the allocator keeps is part of it, as far as there is room, and before CUDA 11.7 the context
had all kernels, [1,343 MiB](https://huggingface.co/docs/transformers/v4.20.1/en/perf_train_gpu_one).

### What was changed after round 9

These numbers were chosen with all rounds in sight, round 9 too. Time, each with a cause; the shares of peak were fitted
again to the rows marked *fit*: {ampere} on Ampere, instead of 0.765, and {hopper} and {yearly} a year on Hopper.

- Several GPUs take 6 % longer than one for the same work: all wait for the slowest, and GPUs of one kind
  [differ by 8 %](https://arxiv.org/abs/2208.11035) on average.
- Outside of products a GPU with GDDR reaches 90 % of its memory's rate, and one with HBM since Ampere 70 %, instead of
  80 % each: its memory has more bytes a second for each multiprocessor than most kernels ask for at a time. A plain
  copy reaches more than that, so this is of what published software runs and not of the hardware. Volta, where 80 % is
  right, and AMD's GPUs, where a copy was measured, keep it.
- Depthwise convolutions reach a sixth of what other fp32 reaches, and not a third.
- Where an image's layout is not the one that tensor cores need, the backward pass converts twice as much as the
  forward pass, since it has two convolutions; it was counted as half as much again.
- DistributedDataParallel [copies gradients](https://github.com/pytorch/pytorch/pull/41954) to its buckets and back,
  unless it is told otherwise, as it is by Trainyard's steps.
- Machines with up to eight V100 have no switch: two V100 share two of their six links, four share four.
- DeepSpeed's AdamW updates weights in fp32, whatever the model computes in.

They were chosen among 1, 1.04, 1.06 and 1.08, 0.8 and 0.9 for GDDR, 0.65, 0.7, 0.75 and 0.8 for HBM, and a
third, a quarter, a sixth and an eighth, by a script that is not in the repository. By this script the mean error of a
document, as a logarithm, fell from 0.196 to 0.180, all documents counting the same, and leaving out one of the 72 at a
time chooses 0.9 (but for two), 1.08, 0.65 and an eighth: of the last three the milder neighbours are used, which differ
by less than 0.002.

Memory: DistributedDataParallel's buckets are beside the gradients, and as large, with the same exception. Of what is
not counted otherwise 12 % of all but logits is added, where it was 12 % of activations: the middle error of reserved
memory was negative in almost every round.

Examined and not changed: the number of multiprocessors of each GPU for the last round of tiles, which made the errors
larger; a share of peak of its own for FlashAttention 1 and 2 on A100 (better for ViT g/14, worse for long rows);
exchange at a smaller share of its link, or less of it hidden; 30 ms instead of 20 between steps; buffers of DeepSpeed's
defaults, with which published trainings with ZeRO were predicted too high; and a factor for each kind, since what is
left differs from round to round.

### What was changed after round 10

Time only. These numbers were chosen with rounds 1 to 10 in sight, so that only a later round can say what they are
worth. The shares of peak were not fitted again: the rows marked *fit* alone would give Ampere 0.92, with which rounds 8
to 10 are predicted worse.

- All GPUs wait for the slowest, which takes the longer the more there are: 4 % for two, 10 % for eight and 16 % for 64,
  instead of 6 % for any number. It is the expected largest of so many normally distributed times (Blom 1958) with a
  standard deviation of 7 %.
- In fp32 a T4 reaches 56 % of its peak, since its clock falls under its limit of 70 W. All six rows are of one source.
- Convolutions of 3 x 3 in fp32 take 70 % of the time: cuDNN has
  [Winograd's algorithm](https://arxiv.org/abs/1509.09308) for them, with 2.25 times fewer multiplications.
- Depthwise convolutions reach a tenth of what other GPUs' fp32 reaches, on a T4 too, and not a sixth.
- Compiled, attention of language models that is not one kernel reads its scores once and writes what the product with
  the values reads: a third as much, and in 16 bits.
- The GPU waits for Python for 25 ms a step instead of 20, and 20 µs for each operation instead of 26. Our own machine
  took 26 µs; rows of [gollem](https://github.com/Jjschwartz/gollem) on H100 and of
  [a course's model](https://github.com/csdiywithme/cs336-assignment2-systems) on B200 fit 8 to 20.

The numbers were chosen among those that the constants' comments name, and with one document left out at a time: 135 of
140 choose the same, which are these but for 10 µs an operation: too little for our own trainings, so that 20 is used.
The mean error of a document, as a logarithm, falls from 0.204 to 0.189, and that of the document left out to 0.191;
documents of rounds 8 to 10 count twice, and those that state the time of a whole training three tenths. This was
computed by a script that is not in the repository.

Examined and not changed: a network without RDMA at less than four fifths of its rate (two sources); fp8 on MI300X,
whose rows in three of four sources take half as long again as predicted; and GPT-2 written from scratch.

### What was changed after round 11

First attention, where it is one kernel of torch or of the FlashAttention packages: it was given the share of peak of
other products, also on GPUs whose new instructions FlashAttention-2 does not use. On Hopper it reaches 55 % now, the
middle of FlashAttention-2's and FlashAttention-3's (46 rows, 23 documents), and on Blackwell 25 % (9 rows of two
projects, so that one of them decides it). With Transformer Engine nothing changes. With each document left out of the
choice all choose these; with each project left out, 7 of 12 do on Hopper, and the others 60 %. The mean error of a
document, as a logarithm, falls from 0.21 to 0.19 on Hopper, and from 0.59 to 0.12 on Blackwell. This was computed by a
script that is not in the repository. Deterministic attention on Blackwell, which had Hopper's 35 %, has 25 % too.

Then three mistakes were corrected, and no number was chosen again:

- Winograd's algorithm is given to convolutions of 3 x 3 without stride or dilation only, since it needs a stride of 1;
  ResNet's with a stride of 2 had it, and those of 1 x 3 and 7 x 3 of models without a closed form.
- It has fewer multiplications, but writes as much: writing had been sped up too.
- Python takes no longer to start operations on more GPUs: its time had been multiplied as if it waited for the slowest.

By this program rounds 3 to 11 had a median of 11.0% and 80.3% within 25 % before them, and have {late_today} today.
Compiled attention of images still reads its scores as often as eager attention: there is one such row, ViT
compiled on H100, whose error would go from -15 % to -40 %.

Rounds 5 and 6 were gathered for memory, and say how fast they were too. In round 5 FSDP of torch 1.13 on four V100,
with 128 tokens a sample, took 1.3 to 5.3 times as long as predicted (10 rows); of BERT on V100 and torchtitan (10 rows)
the median is 14 %. In round 6 it is 12 % of BERT and GPT-2 of transformers 4.12 on 16 V100 (15 rows); 20 % of RoBERTa
(11 rows), which takes twice as long as predicted where a micro-batch is of one sample or eight; and 32 % of the model
of a course, whose attention and norms are many small operations (19 rows on A800, RTX 4090, B200).
"""

_OF_ROUND_3 = """
*New documents, new settings* leaves out rows of round 3 whose document already had rows in round 2, and rows that
repeat the settings of others, measured at another time.

By kind, all rounds:
"""

_OF_KINDS = """
With fewer than 2,048 tokens a micro-batch Python, and not the GPU, sets the pace. The interval that `estimate` prints
is what eight of ten trainings took, as multiples of what is predicted. It is the narrowest that holds eight of ten of
three sets: the first predictions of rounds 3 to {last}, these together with today's errors of the other rows here and
of those marked *held out* below, and today's errors of all rows here. Where no set's own interval does, it spans all.
The interval from the rounds before held, of the rows of rounds 3 to {last}, {held}.
Those of {wide} hold more than nine of ten of their rows today: their ends are those of first predictions.
"""

_OF_SOURCES = """By source and GPU. The last column is the middle error with its sign.
"""

_OF_MEMORY = """
## Memory

Memory of the same rows. A source may count tensors (`allocated`), what PyTorch's allocator takes for them (`reserved`),
all of a GPU's memory (`device`), or not say; the estimate's reserved memory is compared unless it counts tensors, and
for `device` with CUDA's context, or with what is left of the GPU. In rounds 1 and 2 tensors were predicted
throughout. What the allocator keeps beyond tensors is 12 % of all but logits, and 60 % of logits: the difference of
both figures in 30 other runs of one source on A100, where the 12 % are of activations.
A CUDA context is 0.35 GB more, NCCL's buffers are 0.57 GB with two GPUs
and 0.72 GB with more, [as](https://github.com/pytorch/pytorch/issues/107667)
[was](https://github.com/NVIDIA/nccl/issues/964) [measured](https://github.com/NVIDIA/nccl/issues/1685).

**The bars are a median of 10 % and 70 % within 15 %. Rounds 10 and 11, by today's formulas, meet both, {tenth} and
{eleventh}. Round 9, by those before, missed both, {ninth}, and round 8 by far, {eighth}. Rounds 6 and 7 just missed
them, {unseen}: round 6, of others, with {sixth}, and round 7, our own loop on an H200, with {seventh}, today
{seventh_today}. Rounds 6 to 11 together have {every}. Round 5, for whose misses the formulas were changed, was
predicted first with {fifth}, and has {fifth_today} today.** Decoders of round 6 meet the bars, with small micro-batches
too. Its encoders, RoBERTa of 2020, do not: all are predicted too low.
Rounds 6 and 7 train on one GPU, and 31 of the 46 rows of round 6 are of one model: that of Stanford's CS336, in three
sizes, as eight people measured it. In round 7 adapters, encoders and images are within 15 % in {of_others} of 15. Most
decoders trained as a whole are predicted too low: DistributedDataParallel was still around the model of the one
process, and its buckets held the gradient between steps, 4 bytes a parameter that are no longer there.

The rule of rounds 5 and 6 was set beforehand: all rows of a table whose tokens (or pixels) of a sample, micro-batch,
precision, optimizer, recomputation and number of GPUs are stated, or are in the script that was run or its defaults,
without offloading, and not the same run again; at most a quarter from one document, none of which had been used before.
The values were in sight where the settings were read, but settings and predictions were committed before the values
were entered. What PyTorch counts does not depend on the GPU, so one that the catalogue lacks, or a source does not
name, is described as another. Of the 66 rows on RoBERTa every sixth was taken. Left out of round 6 is what the course's
own DDP and FSDP take, recomputation of several layers at once, steps without an update, and rows of unknown length
(PEFT's).

Round 4 is of rows of three documents that were not used before: fine-tuning by LitGPT, by LLaMA-Factory, and by
transformers as Unsloth compares itself with it. Most of it is QLoRA, and its first predictions missed the bars too.
"""

_MEMORY_NOTES = """
What changed in the formulas of memory after round 3, by what the software does and not by a fit, read off the tensors
that transformers' models save for their backward pass (`torch.autograd.graph.saved_tensors_hooks`):

- An eager RMSNorm keeps its input in fp32, and what its weight multiplies; rotary positions keep nothing. Autocast
  keeps the input of each matrix by itself, cast, and so does peft for each adapter. Frozen weights keep no inputs.
- In its backward pass an MLP has gradients of its inner values, beside what it kept.
- torch's `foreach` AdamW, which software takes that does not ask for the fused one, has a copy of all it updates. The
  column `optimizer` says so where a source or its defaults do: fms-acceleration, ms-swift, Qwen, LitGPT's full
  fine-tuning. Of these, {exact} runs of rounds 2 and 3 are then predicted to within 1 %.

What changed after round 4, in the same way:

- Releases of bitsandbytes before July 2024 keep the input of each matrix in 4 bits
  ([fixed](https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1270) in 0.43.2), in an attribute of the graph
  (`ctx.tensors` of `MatMul4Bit`), which is not freed by the backward pass: LitGPT's loop holds the logits, and so the
  graph, of one step until those of the next are there. Its QLoRA of 2024 was predicted a third too low for that.
- The first FSDP, with frozen weights and torch's reentrant checkpoint (accelerate's by default), holds each layer's
  input and its gradient until the backward pass ends; FSDP2 does not. A test counts them. FSDP gathers weights of 4
  bits as they are.
- What adapters drop out is a copy for each, with a mask of a byte for each value. Adapters in the model's own precision
  have no copies otherwise: one input is shared.
- GPT-NeoX and Phi-2 keep queries and keys as they were before their rotation too, as a part of one tensor with the
  values. Qwen3 keeps what the norms of its queries and keys need. OPT drops out.

What changed after round 5, in the same way; what is allocated was also counted by a simulation of PyTorch's caching
allocator under transformers' models, within 5 % of the formulas:

- Before torch 2 `zero_grad` filled gradients with zeros and kept them (`--stack-year` before 2023). Apex's always freed
  them.
- FSDP before torch 2.1 gathers all layers that Python is ahead of the GPU (`limit_all_gathers`, before 2024).
- DeepSpeed's stages 0 to 2 have gradients in fp32 in their update, when activations are gone.
- Eager attention keeps 6 bytes of each score in 16 bits, 4 in fp32, 9, 5 or 7 (under autocast) where it drops out. ViT
  and Swin keep them too, and norms' inputs in fp32 under autocast; BERT's queries, keys and values are three matrices.
  On GPUs without flash attention `sdpa` keeps no scores in fp16 and fp32.
- Under autocast with recomputation only one layer's copies of matrices exist in the backward pass, of all before it;
  layers' inputs are in fp32.
- The allocator reuses what activations leave for logits: 60 % is kept beyond logits only where these are more.
- A loss in 16 bits (`loss` in the table) has three copies of the logits in 16 bits: GPT-2 from scratch, DeepSpeed's
  small model.

Descriptions that were corrected with it, of rows of rounds 2 and 5: that column, and heads of 74 values on Windows,
which no fused attention takes, so that `stack` is eager.

What changed after round 7 was counted in the same way by the rules of a GPU's autocast, which makes powers, norms and
sums fp32 where a CPU's does not. For all other families they give what had been counted on a CPU.

- GPT-2 computes its GELU with a power: under autocast three of the five inner values that it keeps are in fp32.
- A loss that is given logits in 16 bits has, under autocast, the log of the softmax in 16 bits, and again in fp32 with
  its gradient: 10 bytes a logit. The trainings of round 7 have such a loss, which
  their rows, as they were predicted first, do not say.

Misses of round 5 whose causes are not changed: Qwen3 0.6B on MI100, whose attention seems to keep no scores; ZeRO 3
around a model that DeepSpeed did not make, which keeps gathered weights; ViT of torchvision, for which the allocator
had 1 to 2 GB more; LoRA and QLoRA with rows of 512 tokens, which took as much as with 2,048.

Misses of round 6 with their likely causes, of which only the first was changed, and none was measured yet:

- RoBERTa (13 to 46 % too low, today 18 % or less): nvidia-smi's figure has the context of NVIDIA's container, which
  counts today, and NCCL's buffers and DDP's buckets, which Lightning makes for one GPU too.
- The course's model in bf16 with 128 and 256 tokens (7 to 11 % too high): copies of matrices are counted in the update
  too, when the graph that held them is gone.
- The same with 512 and more tokens in fp32 (8 to 27 % too low): its softmax is written by hand and keeps three tensors
  of scores. Two scripts free gradients after the forward pass, and have them beside activations (6 to 23 % too low).
- GPT-2 of a small trainer (17 % too low for two of four rows); its ZeRO 3 is around a model that DeepSpeed did not
  make.

What the other misses of memory have in common:

- LitGPT's weights in 4 bits have constants in 32 bits (`bnb.nf4`, not `nf4-dq`), its prediction is never tied, and
  its logits, of all chunks, exist at once: 0.5 to 2 GB that are not counted, most of Gemma's.
- QLoRA of transformers with long rows (Unsloth's comparison) is predicted a third too low: peft's
  `prepare_model_for_kbit_training` makes embedding and prediction fp32, not 16 bits, and the loss has more copies of
  the logits, or the allocator keeps more for them where a GPU is full, than is counted.
- FSDP with accelerate and all weights trained: its newest releases keep weights in fp32.
- Rows of varying length (ms-swift) fragment what is reserved.
"""
_STACKS = """
## What the software is

A row's `stack` says which operations are one kernel, as its source states it: `eager` has attention of many operations,
`sdpa` has it in one kernel, `fused` norms, rotary positions and nonlinearities too; `compiled` and fp8 have columns of
their own, and `stack_year` is the year of the software. Where a source says nothing, the column is empty, and `sdpa` of
today is assumed, which is what the training steps run.

H100 and H200 had a share of peak each, so the same work was 36 % faster on H200, only because its published trainings
run newer software. Of Hopper GPUs, {rows}, but for the last column those that are fitted too:

{table}

So they share one, to which every year of software from 2024 to 2026 adds; Blackwell has it too. On other generations
the rows to be fitted are of software of one age, and nothing is added.
"""

_UNSEEN_NOTES = """
## What was changed, and why the misses remain

What changed after round 2, by what the software does and not by a fit: autocast casts the inputs of each product, and
has norms, sums and softmax in fp32; BERT and GPT-2 drop out; eager attention writes its scores, and copies heads;
the backward pass of one kernel moves half as much again as its forward pass, of many operations twice as much; a
product also writes its result; convolutions of channels-first images are transposed for tensor cores and back, and take
at least as long as their images take to be read and written; depthwise ones and fp32 have a measured share of the peak;
eager AdamW moves three times as much; T4 and Ada have a measured share instead of that of a neighbour.

Three things in the description of rows were corrected after their first prediction, which is as it was: NVIDIA's
BERT in fp16 keeps gradients in fp16 (36 rows, from `ddp` to `zero0`) and is eager, and the column `stack` did not exist
before round 2.

- SuperBench's transformers of 2021 on A100: AdamW loops over parameters in Python, which takes longer than the model.
- BERT on V100 with four and eight GPUs: gradients are exchanged more slowly than the links allow, and smaller products
  than usual reach less in fp32.
- ONNX Runtime's comparisons: transformers of 2021 in fp16 copies biases, unscales and clips one by one.
- GPT-2 from scratch, compiled: it evaluates every ten steps.
- GeForce: RTX 3090 and 4090 are predicted up to a fifth too slow, in convolutions most of all; L40 too.

With fewer than 2,048 tokens a micro-batch the estimate had a round 10 µs for an operation in round 1. Then 26 µs, and
how many operations a layer has, [were measured](../benchmarks/results/launch_overhead.json) by
`python benchmarks/launch_overhead.py` on a GPU that no row is of; since round 10 it has 20 µs.

An independent comparison in November 2026 with 135 other published trainings, before these changes, found a median
error of 24 %, and 52 % within 25 %: of decoders with stated checkpointing 12 % and 73 %, of BERT 32 %, of images 31 %
(too fast), of LoRA 20 %. Memory was within 15 % for 38 % of 34 rows, mostly too low.
"""

_SEEN = """## Trainings that the estimate was made with

The rows marked *fit* set the share of each GPU generation; most others were seen while formulas were chosen.
"""

_KNOWN_GAPS = """## What the misses have in common

- Micro-batches of few tokens (13B with 512 or 1,024 tokens on A100): less of the exchange is hidden than assumed.
- nanoGPT's 250 and 135 ms are from December 2022, before its attention was fused, and from its compiled form, which
  leaves out what dropout would write.
- DLPerf's GPT-2 on V100 with one or two GPUs, and GPT-2 large of transformers 4.12: their software is not fused.
- Transformer Engine's fp8 on MI300X was new in October 2024 (GPT-2 XL); AMD's trainings of 2025 are predicted
  within a fifth.
- MI325X has the peaks of MI300X and takes a third more power: it is up to 24 % faster than predicted.
- DeepSpeed 0.14 with transformers on A800: a third slower than predicted at every stage, with and without recomputing.
- LoRA and QLoRA of a 3B model with FSDP on two GPUs: a micro-batch of 2 takes longer than its exchange explains.
- ZeRO 1 over all of 512 and 1,024 GPUs with 400 Gbit/s a node (InternLM): collectives over many nodes are slower than
  their links; sharded within a node, the same training is predicted within 18 %.
- Memory: H200's float8 trainings of June 2025 keep less for the loss than torch's cross entropy; DLPerf's is fused.
  PowerLM 3B with FSDP holds 8 bytes a parameter on each of two GPUs, as of weights in fp32.
- A small trainer for transformers' models (the 8B and 3.8B models on one GPU) takes up to twice as long as predicted.
- torchtitan of March 2024 keeps more, and PyTorch has reserved more, than is counted; torchtune too.
- Of models beyond 70B only trainings with tensor parallelism were found, which is not estimated.
"""

_LEFT_OUT = """## What was left out, and what was seen before

Six published rows are not in the table, because their source does not say what the estimate has to know: which layers
have adapters (NeMo's LoRA), or whether layers are recomputed (torchtune). With a guess, their time was off by +74 %,
+72 %, +143 %, +47 %, +19 % and -4 %. Five of Llama 3 8B on MI300X and H200 (ROCm/TransformerEngine, issue 79) do not
say how long a sample is.

The memory of eight rows (Llama 2 7B, DLRover) is left out: 32 to 42 GB, where 12 to 27 GB are predicted. Their FSDP
has no policy for mixed precision, so under autocast it gathers weights in fp32, and what goes from layer to layer is
fp32 too; the estimate's FSDP gathers and computes in 16 bits.

The rules of round 8 were written before a document was opened, and rounds 9 and 10 follow them: documents that had not
been used before, at most 12 rows of each (8 of those gathered for memory in round 10), all rows of a table whose
settings are stated, in the script that was run, or its defaults. Left out were tensor, pipeline and context
parallelism, mixtures of experts, offloading, other fp8 than torchao's and Transformer Engine's, TF32, models of several
modalities, detection, samples of unknown length, GPUs that the catalogue lacks, steps without an update, figures that
are estimates themselves, and the same run again. In round 10 a rule was added when two documents had been entered:
rows that differ in what the estimate does not describe, which kernel computes attention, are all taken. It added two
rows of nanoGPT, which are among those with the largest errors. Round 11's own rules, also written first: only rates of
steps, at most one setting that is not stated, and at most 8 rows of a document, every n-th of a longer table.
[`trainings_left_out.csv`](trainings_left_out.csv) lists what was found and left out.
"""

_HELD_OUT = """\
The rows marked *held out* were found later, in sources that the table did not have, and compared before anything was
changed. Eager models with RMSNorm were then found to be predicted too fast throughout: RMSNorm and rotary positions
are not one kernel each in transformers, as had been assumed, and are now counted operation by operation.
"""

_FRESH = """\
Another 23 rows were found on 23 November 2026 (AMD's trainings on MI300X and MI325X, DLRover's on A100, one of
Megatron-Bridge), predicted before anything was changed, and marked *held out* too. Trainings in fp8 were predicted
too slow among them: the layers of Transformer Engine have one kernel for RMSNorm, and one for rotary positions, which
is now counted so. The last column has the eight rows whose memory is left out.
"""

_SEEN_TOGETHER = """\
GPT-2's GELU is eight operations in transformers, not one kernel, and so was its attention in the time of V100. Its
memory had been counted so, but its time only since 23 November 2026 (Megatron-LM and OneFlow, which fuse both, are a
family of their own). The median error on Volta fell from 21.0 % to 17.8 % then, with the same curve; all of these rows
had been seen, so they do not prove this change.
"""

_ADDED = """\
Not used in the fit does not mean not seen. Of the 64 rows that were added on 22 November 2026 some had been compared
before the memory model and the overhead of adapters were changed, so they do not prove these changes:
"""


def page() -> str:
    """Return the text of docs/estimates.md."""
    rows = published_trainings()
    with_memory = [row for row in rows if row.memory_error is not None]
    header = "| | rows | median error of a step's time | within 25 % |"
    lines = [_INTRODUCTION, *_unseen(), _stacks(), _UNSEEN_NOTES, _SEEN, header, "|---|--:|--:|--:|"]
    timed = timed_trainings()
    lines.append(_summary("all that say how fast", timed))
    lines.append(_summary("not used in the fit", [row for row in timed if not row.is_fitted]))
    lines.append(_summary("held out", [row for row in timed if row.is_held_out]))
    lines += [_summary(name, rows_of(name)) for name in efficiency_curves() if rows_of(name)]
    within = sum(abs(row.memory_error or 0) <= 0.15 for row in with_memory) / len(with_memory)
    sources = len({row.source for row in rows})
    lines += [
        "",
        f"{len(rows)} rows from {sources} documents. {len(with_memory)} state memory: {within:.0%} are within 15 %.",
        "",
        "| GPU generation | share of peak, software of 2024 | with each year to 2026 | from |",
        "|---|--:|--:|---|",
    ]
    for curve in efficiency_curves().values():
        source = f"as {curve.taken_from}: {curve.source}" if curve.taken_from else curve.source
        lines.append(f"| {curve.generation} | {curve.highest:g} | {curve.yearly:+g} | {source} |")
    lines += ["", _KNOWN_GAPS, _LEFT_OUT]
    lines += [
        _HELD_OUT,
        *_earlier("held out"),
        "",
        _FRESH,
        *_earlier("fresh"),
        "",
        _SEEN_TOGETHER,
        _ADDED,
        *_earlier("added"),
        "",
        "## Every row",
        "",
    ]
    for number, source in enumerate(dict.fromkeys(row.source for row in rows), start=1):
        table = _table([row for row in rows if row.source == source])
        lines += [f"### {number}. {_title(source)}", "", f"<{source}>", "", *table, ""]
    return "\n".join(lines).rstrip() + "\n"


def _unseen() -> list[str]:
    """Return the tables of what was predicted before it was compared: by round, by kind, by source, and of memory."""
    rows, third = held_out_trainings(), [row for row in held_out_trainings() if row.round == UNSEEN_ROUND]
    new = [row for row in third if _is_new(row)]
    numbers = sorted({row.round for row in rows})
    of_rounds = {f"round {number}": [row for row in rows if row.round == number] for number in numbers}
    of_kinds = {kind: [row for row in rows if row.kind == kind] for kind in KINDS}
    of_sources: dict[str, list[HeldOut]] = {}
    for row in rows:
        name = f"{row.round}: [{_title(row.source)}]({row.source}), {row.training.machines.gpu.name}"
        of_sources.setdefault(name, []).append(row)
    intervals = {each.kind: each for each in _intervals()}
    fixed = [row for row in rows if OWN_ROUND >= row.round >= UNSEEN_ROUND and row.rate is not None]
    groups = (fixed, [row for row in fixed if row.round < OWN_ROUND], [row for row in fixed if row.round == OWN_ROUND])
    errors = ([row.time_error(first=True) for row in some] for some in groups)
    shares = (" and ".join(_median_and_within(some, 0.25)) for some in errors)
    figures = dict(zip(("first", "published", "own"), shares, strict=True))
    figures |= {"own_today": _today(groups[-1]), "others": _today([row for row in rows if row.round < OWN_ROUND])}
    hopper, ampere = (efficiency_curves()[name] for name in ("Hopper", "Ampere"))
    figures |= {"hopper": f"{hopper.highest:g}", "yearly": f"{hopper.yearly:g}", "ampere": f"{ampere.highest:g}"}
    seen = [row for row in rows if row.round < FIXED_TIME_ROUND]
    figures["today"] = _shares_today(seen)
    figures["late_today"] = _shares_today([row for row in seen if row.round >= UNSEEN_ROUND])
    figures["every_first"] = _first_time([row for row in rows if row.round >= UNSEEN_ROUND])
    figures["own_kinds"] = ", ".join(f"{kind} {_today(some)}" for kind, some in _by_kind(groups[-1]).items())
    lines = [
        *_first_predictions(),
        _UNSEEN.format(**figures),
        *_times("round", {**of_rounds, "of round 3: new documents, new settings": new}),
    ]
    lines.append(_OF_ROUND_3)
    lines += _times("trainings", of_kinds, lambda name: _interval_cell(intervals[name]))
    shares = {name: _within(of_kinds[name], intervals[name]) for name in of_kinds}
    wide = " and ".join(f"{name} ({share:.0%})" for name, share in shares.items() if share > 0.9)
    lines += [
        _OF_KINDS.format(last=LAST_TIME_ROUND, held=_held_by_earlier(), wide=wide),
        *_errors_of_sources(of_sources),
    ]
    by_name = {
        "unseen": _memory_errors([row for row in rows if OWN_ROUND >= row.round >= UNSEEN_MEMORY_ROUND], first=True),
        "every": _memory_errors([row for row in rows if row.round >= UNSEEN_MEMORY_ROUND], first=True),
        "eighth": _memory_errors(of_rounds["round 8"], first=True),
        "ninth": _memory_errors(of_rounds["round 9"], first=True),
        "tenth": _memory_errors(of_rounds["round 10"], first=True),
        "eleventh": _memory_errors(of_rounds["round 11"], first=True),
        "sixth": _memory_errors(of_rounds["round 6"], first=True),
        "seventh": _memory_errors(of_rounds["round 7"], first=True),
        "seventh_today": _memory_errors(of_rounds["round 7"], first=False),
        "fifth": _memory_errors(of_rounds["round 5"], first=True),
        "fifth_today": _memory_errors(of_rounds["round 5"], first=False),
    }
    figures = {name: " and ".join(_median_and_within(errors, 0.15)) for name, errors in by_name.items()}
    others = [row for row in of_rounds["round 7"] if row.kind in ("adapters", "other language models", "images")]
    figures["of_others"] = str(sum(abs(error) <= 0.15 for error in _memory_errors(others, first=True)))
    lines.append(_OF_MEMORY.format(**figures))
    of_tuning: dict[str, list[HeldOut]] = {}
    for row in rows:
        adapters = row.training.adapters
        tuning = "all weights" if adapters is None else "QLoRA" if adapters.is_quantized else "LoRA"
        of_tuning.setdefault(tuning, []).append(row)
    groups = {**of_rounds, **of_tuning, **of_kinds}
    foreach = [row for row in rows if row.training.optimizer == FOREACH and row.training.adapters is None]
    exact = sum(abs(error) < 0.01 for error in _memory_errors(foreach, first=False))
    counted = ("allocated", "reserved", "device", "unknown")
    groups |= {f"counted: {counts}": [row for row in rows if row.memory_counts == counts] for counts in counted}
    return [*lines, *_memory({**groups, "all": list(rows)}), _MEMORY_NOTES.format(exact=exact), ""]


def _first_predictions() -> list[str]:
    """Return what today's formulas had not seen, by kind, family and GPU, and what became of the two rounds before."""
    numbers = (8, 9, 10, LAST_TIME_ROUND)
    of_round = {number: [row for row in held_out_trainings() if row.round == number] for number in numbers}
    rows, is_last = of_round[10], LAST_TIME_ROUND == 10
    stated = [row for row in rows if not _notes(row, "not stated", "assumed", "not known", "taken")]
    sure = [row for row in stated if not _notes(row, "default")]
    steps = [row for row in rows if not _notes(row, "all of a training", "with its eval", "hours")]
    memory = _memory_errors(rows, first=True)
    figures = _counts(rows) | {
        "heading": "## First predictions:" if is_last else "### First predictions before:",
        "unseen": "; no round has been predicted by them yet" if is_last else "",
        "memory_rows": len(memory),
        "unsure_rows": len(rows) - len(sure),
        "whole_rows": len(rows) - len(steps),
        "middle_memory": f"{statistics.median(memory):+.0%}",
        "bars": "\n".join(_bars(10, 10)),
        "tenth_today": _today(rows),
        "sure": _first_time(sure),
        "sure_memory": _memory_shares(sure, first=True),
        "stated": _first_time(stated),
        "stated_memory": _memory_shares(stated, first=True),
        "steps": _first_time(steps),
    }
    earlier = {}
    for name, some in (("eighth", of_round[8]), ("ninth", of_round[9])):
        earlier |= {name: _first_time(some), f"{name}_today": _today(some)}
        earlier |= {f"{name}_memory{end}": _memory_shares(some, first=not end) for end in ("", "_today")}
    lines = [_TENTH.format(**figures), *_firsts(10, rows), _EARLIER.format(**earlier)]
    if is_last:
        return lines
    last = of_round[LAST_TIME_ROUND]
    bars = "\n".join(_bars(LAST_TIME_ROUND, LAST_MEMORY_ROUND))
    volta = [row for row in last if row.training.machines.gpu.generation == "Volta"]
    of_places: dict[str, list[HeldOut]] = {}
    for row in last:
        of_places.setdefault(_place(row), []).append(row)
    medians = [statistics.median(abs(row.time_error(first=True)) for row in some) for some in of_places.values()]
    found = _counts(last) | {
        "number": LAST_TIME_ROUND,
        "today": _today(last),
        "memory_rows": len(_memory_errors(last, first=True)),
        "bars": bars,
        "volta_rows": len(volta),
        "volta": _first_time(volta),
        "others": _first_time([row for row in last if row not in volta]),
        "of_places": f"{statistics.median(medians):.1%}",
        "without_versions": _first_time([row for row in last if not _notes(row, "NGC 20.06")]),
    }
    return [_LAST.format(**found), *_firsts(LAST_TIME_ROUND, last), "", *lines]


def _counts(rows: list[HeldOut]) -> dict[str, object]:
    """Return of how many documents and places a round's rows are, how many state a rate, and how far these are off."""
    errors = [row.time_error(first=True) for row in rows if row.rate is not None]
    return {
        "documents": len({row.source for row in rows}),
        "places": len({_place(row) for row in rows}),
        "time_rows": len(errors),
        "far": sum(abs(error) > 0.25 for error in errors),
        "middle": f"{statistics.median(errors):+.0%}",
    }


def _place(row: HeldOut) -> str:
    """Return the repository or site that a row is of."""
    return "/".join(row.source.split("/")[:5])


def _groups(rows: list[HeldOut]) -> dict[str, list[HeldOut]]:
    """Return rows by kind, family and GPU, and all of them."""
    groups = {f"kind: {kind}": some for kind, some in _by_kind(rows).items()}
    for row in rows:
        model = row.training.architecture
        groups.setdefault(
            f"family: {model.name if isinstance(model, ImageModel) else model.family or 'encoders'}", []
        ).append(row)
    for row in rows:
        groups.setdefault(f"GPU: {row.training.machines.gpu.name}", []).append(row)
    return groups | {"all": rows}


def _notes(row: HeldOut, *texts: str) -> bool:
    return any(text in row.note for text in texts)


def _bars(number: int, memory_number: int) -> list[str]:
    """Return the bars as a table: what first predictions of a round have, of memory of another, and whether they meet
    them."""
    rows = [row for row in held_out_trainings() if row.round == number]
    times = [abs(row.time_error(first=True)) for row in rows if row.rate is not None]
    of_memory = [row for row in held_out_trainings() if row.round == memory_number]
    memory = [abs(error) for error in _memory_errors(of_memory, first=True)]
    kinds = {
        kind: [abs(row.time_error(first=True)) for row in some if row.rate] for kind, some in _by_kind(rows).items()
    }
    worst, kind = max((statistics.median(some), kind) for kind, some in kinds.items() if len(some) >= 15)
    name_of = f"round {number}" if memory_number == number else f"round {number}, memory: {memory_number}"
    lines = [f"| | bar | {name_of} | |", "|---|---|--:|---|"]
    for name, errors, median, bound, share in (("time", times, 15, 25, 75), ("memory", memory, 10, 15, 70)):
        found, within = statistics.median(errors), statistics.fmean(error <= bound / 100 for error in errors)
        lines += [
            f"| {name} | median of at most {median} % | {found:.1%} | {_MET[found <= median / 100]} |",
            f"| {name} | at least {share} % within {bound} % | {within:.0%} | {_MET[within >= share / 100]} |",
        ]
    of_kinds = f"| time | no kind of 15 rows with a median above 25 % | {worst:.1%} ({kind}) | {_MET[worst <= 0.25]} |"
    return [*lines[:4], of_kinds, *lines[4:]]


def _firsts(number: int, of_round: list[HeldOut]) -> list[str]:
    """Return the first errors of groups of a round's rows, of time and of memory, as one table."""
    names = ("rows", "time: median error", "within 25 %", "rows", "memory: median error", "within 15 %")
    lines = [f"| round {number} | {' | '.join(names)} |", "|---|--:|--:|--:|--:|--:|--:|"]
    for name, rows in _groups(of_round).items():
        cells = [name]
        times = [row.time_error(first=True) for row in rows if row.rate is not None]
        for errors, bound in ((times, 0.25), (_memory_errors(rows, first=True), 0.15)):
            cells += [str(len(errors)), *_median_and_within(errors, bound)] if errors else ["", "", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _by_kind(rows: Iterable[HeldOut]) -> dict[str, list[HeldOut]]:
    found: dict[str, list[HeldOut]] = {kind: [] for kind in KINDS}
    for row in rows:
        found[row.kind].append(row)
    return {kind: some for kind, some in found.items() if some}


def _is_new(row: HeldOut) -> bool:
    """Return whether neither the document nor the settings of a row are those of a row that had been seen."""
    seen = [each for each in held_out_trainings() if each.round < row.round]
    settings = {_settings(each.training) for each in (*seen, *published_trainings())}
    return row.source not in {each.source for each in seen} and _settings(row.training) not in settings


def _settings(training: TrainingShape) -> tuple[object, ...]:
    """Return what a row repeats if it measures the same again: all but the engine of one GPU, and the year."""
    machines = training.machines
    shape = (training.architecture.name, training.architecture.parameters, machines.gpu.name, machines.world_size)
    batch = (training.micro_batch_size, training.sequence_length, training.precision, training.activation_checkpointing)
    return (*shape, *batch, str(training.adapters), training.stack, training.compiled)


def _times(heading: str, groups: dict[str, list[HeldOut]], last: Callable[[str], str] | None = None) -> list[str]:
    lines = [
        f"| {heading} | rows | first prediction: median error | within 25 % | today | within 25 % |"
        + (" interval |" if last else ""),
        "|---|--:|--:|--:|--:|--:|" + ("---|" if last else ""),
    ]
    for name, rows in groups.items():
        timed = [row for row in rows if row.rate is not None]
        if not timed:
            continue
        cells = [name, str(len(timed))]
        for first in (True, False):
            cells += _median_and_within([row.time_error(first=first) for row in timed], 0.25)
        lines.append(f"| {' | '.join([*cells, *([last(name)] if last else [])])} |")
    return lines


def _today(rows: Iterable[HeldOut]) -> str:
    """Return the median error in time of rows as they are predicted today, and the share within 25 %."""
    return " and ".join(_median_and_within([row.time_error(first=False) for row in rows if row.rate is not None], 0.25))


def _first_time(rows: Iterable[HeldOut]) -> str:
    return " and ".join(_median_and_within([row.time_error(first=True) for row in rows if row.rate is not None], 0.25))


def _shares_today(rows: Iterable[HeldOut]) -> str:
    errors = [abs(row.time_error(first=False)) for row in rows if row.rate is not None]
    return f"{statistics.median(errors):.1%} and {statistics.fmean(error <= 0.25 for error in errors):.1%}"


def _median_and_within(errors: list[float], bound: float) -> list[str]:
    sizes = [abs(error) for error in errors]
    return [f"{statistics.median(sizes):.1%}", f"{statistics.fmean(size <= bound for size in sizes):.0%}"]


def _within(rows: Iterable[HeldOut], interval: Interval) -> float:
    took = [1 / (1 + row.time_error(first=False)) for row in rows if row.rate is not None]
    return statistics.fmean(interval.time_low <= times <= interval.time_high for times in took)


def _interval_cell(interval: Interval) -> str:
    unseen = f"{interval.unseen_rows} of them unseen" if interval.unseen_rows else "of today's errors"
    return f"{interval.time_low:.2f} to {interval.time_high:.2f} × of {interval.rows} rows, {unseen}"


def _errors_of_sources(groups: dict[str, list[HeldOut]]) -> list[str]:
    lines = [
        _OF_SOURCES,
        "| round: source, GPU | rows | first median | today | with its sign |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, rows in groups.items():
        if timed := [row for row in rows if row.rate is not None]:
            first, today = ([row.time_error(first=which) for row in timed] for which in (True, False))
            medians = [f"{statistics.median(map(abs, errors)):.1%}" for errors in (first, today)]
            lines.append(f"| {name} | {len(timed)} | {' | '.join(medians)} | {statistics.median(today):+.1%} |")
    return lines


def _memory(groups: dict[str, list[HeldOut]]) -> list[str]:
    lines = [
        "| | rows | first prediction: median error | within 15 % | today | within 15 % |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, rows in groups.items():
        first, today = (_memory_errors(rows, first=which) for which in (True, False))
        if first:
            cells = [name, str(len(first)), *_median_and_within(first, 0.15), *_median_and_within(today, 0.15)]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _memory_shares(rows: Iterable[HeldOut], *, first: bool) -> str:
    return " and ".join(_median_and_within(_memory_errors(rows, first=first), 0.15))


def _memory_errors(rows: Iterable[HeldOut], *, first: bool) -> list[float]:
    return [error for row in rows if (error := row.memory_error(first=first)) is not None]


def _stacks() -> str:
    """Return what became of one share of peak for H100 and H200, with and without the year of the software."""
    gpus = ("Hopper", "Blackwell")
    on_hopper = rows_of("Hopper")
    held_out = [row for row in held_out_trainings() if row.training.machines.gpu.generation in gpus and row.rate]
    of_today = efficiency_curves()["Hopper"]
    older, newer = (replace(of_today, highest=share, yearly=0.0) for share in (0.59, 0.78))
    curves: dict[str, Callable[[TrainingShape], Efficiency]] = {
        "a share for each: 0.59 and 0.78": lambda training: newer if "H200" in training.machines.gpu.name else older,
        "one share: 0.59": lambda _training: older,
        f"one, {of_today.highest:g}, and {of_today.yearly:g} a year": lambda _training: of_today,
    }
    lines = [
        "| | all of them | H200 | software since 2025 | held out on H100 and Blackwell |",
        "|---|--:|--:|--:|--:|",
    ]
    groups: list[list[Published] | list[HeldOut]] = [
        on_hopper,
        [row for row in on_hopper if "H200" in row.training.machines.gpu.name],
        [row for row in on_hopper if row.training.stack_year >= 2025],
        held_out,
    ]
    for name, curve in curves.items():
        medians = [f"{statistics.median(abs(_error(row, curve(row.training))) for row in rows):.1%}" for rows in groups]
        lines.append(f"| {name} | {' | '.join(medians)} |")
    counts = f"the median error of {' / '.join(str(len(rows)) for rows in groups)} rows"
    return _STACKS.format(rows=counts, table="\n".join(lines))


def _error(row: Published | HeldOut, curve: Efficiency) -> float:
    """Return how far the time of a step is off with this curve."""
    if isinstance(row, Published):
        return row.time_error(curve)
    assert row.rate is not None
    return row.rate / samples_per_second_per_gpu(row.training, step_time_of(row.training, curve).total) - 1


def _took(kind: str, *, earlier: bool) -> tuple[list[float], list[float]]:
    """Return a kind's errors in time and memory: of first predictions that count as unseen, or today's of the rest."""
    rows = [row for row in held_out_trainings() if row.kind == kind]
    timed = [row for row in rows if row.rate is not None and (row.round < UNSEEN_ROUND) is earlier]
    times = [row.time_error(first=not earlier) for row in timed]
    memory = _memory_errors([row for row in rows if (row.round < UNSEEN_MEMORY_ROUND) is earlier], first=not earlier)
    if earlier:
        seen = [row for row in published_trainings() if row.is_held_out and row.kind == kind]
        times += [row.time_error() for row in seen if row.tokens_per_second_per_gpu is not None]
        memory += [row.memory_error for row in seen if row.memory_error is not None]
    return times, memory


def _held_by_earlier() -> str:
    """Return, for each kind, the share of rounds 3 to 11 that lies in the interval of the rounds before them."""
    shares = []
    for kind in KINDS:
        (seen, _), (unseen, _) = (_took(kind, earlier=earlier) for earlier in (True, False))
        if unseen:
            low, high = _tenth_and_ninetieth(seen)
            share = statistics.fmean(low <= 1 / (1 + error) <= high for error in unseen)
            shares.append(f"{share:.0%} of {kind}")
    return f"{', '.join(shares[:-1])} and {shares[-1]}"


def _intervals() -> list[Interval]:
    """Return what lies between the tenth and the ninetieth of a hundred rows, by kind."""
    found = []
    for kind in KINDS:
        (seen, seen_memory), (unseen, unseen_memory) = (_took(kind, earlier=earlier) for earlier in (True, False))
        today = [
            row.time_error(first=False) for row in held_out_trainings() if row.kind == kind and row.rate is not None
        ]
        time_low, time_high = _interval(seen + unseen, unseen, today)
        memory = seen_memory + unseen_memory
        of_memory = _interval(memory, unseen_memory) if len(memory) >= _FEWEST else (None, None)
        found.append(Interval(kind, len(seen + unseen), len(unseen), time_low, time_high, len(memory), *of_memory))
    return found


def _interval(*errors_of_sets: list[float]) -> tuple[float, float]:
    """Return the narrowest interval that holds eight of ten rows of each set: that of one of them, or what all span."""
    sets = [errors for errors in errors_of_sets if len(errors) > 1]
    intervals = [_tenth_and_ninetieth(errors) for errors in sets]
    spanned = (min(low for low, _ in intervals), max(high for _, high in intervals))
    enough = [each for each in intervals if all(_holds(each, errors) for errors in sets)]
    return min(enough, key=lambda ends: ends[1] / ends[0], default=spanned)


def _holds(interval: tuple[float, float], errors: list[float]) -> bool:
    low, high = interval
    within = sum(low <= round(1 / (1 + error), 3) <= high for error in errors)
    return within + 1 >= 0.8 * len(errors)  # the ends lie between two rows


def _tenth_and_ninetieth(errors: list[float]) -> tuple[float, float]:
    """Return what trainings took, as multiples of what was predicted."""
    tenths = statistics.quantiles([1 / (1 + error) for error in errors], n=10, method="inclusive")
    return round(tenths[0], 3), round(tenths[-1], 3)


def intervals_csv() -> str:
    """Return the text of the table of intervals."""
    names = list(Interval.__dataclass_fields__)
    rows = ([("" if value is None else value) for value in vars(each).values()] for each in _intervals())
    return "".join(f"{','.join(map(str, row))}\n" for row in (names, *rows))


def _earlier(about: str) -> list[str]:
    with EARLIER.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["about"] == about]
    heading = about if about == "held out" else ""
    lines = [
        f"| {heading} | rows | median error of a step's time | within 25 % | memory within 15 % |",
        "|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        time_error, times, memory = (
            float(row[name]) for name in ("median_time_error", "times_within_25_percent", "memory_within_15_percent")
        )
        of_memory = f"{memory:.0%} of {row['rows_with_memory']}"
        lines.append(f"| {row['compared']} | {row['rows']} | {time_error:.1%} | {times:.0%} | {of_memory} |")
    return lines


def _model(training: TrainingShape) -> str:
    adapters = training.adapters
    if adapters is None:
        return training.architecture.name
    return f"{training.architecture.name}, {'QLoRA' if adapters.is_quantized else 'LoRA'} {adapters.rank}"


def _network(row: Published) -> str:
    """Return the network of a node, where it is not the usual one."""
    machines = row.training.machines
    usual = machines_of_gpu(machines.gpu, machines.nodes, machines.gpus_per_node).network_gbyte_per_second
    given = machines.network_gbyte_per_second
    return f"{given * 8:g} Gbit/s a node" if given != usual else ""


def _time(row: Published) -> tuple[str, str, str]:
    """Return the published rate, the predicted one, and how far a step's time is off; empty where none is known."""
    if row.tokens_per_second_per_gpu is None:
        return ("", "", "")
    return (f"{row.tokens_per_second_per_gpu:,.0f}", f"{row.predicted_rate():,.0f}", f"{row.time_error():+.0%}")


def _use(row: Published) -> str:
    return "fit" if row.is_fitted else "held out" if row.is_held_out else ""


def _summary(name: str, rows: list[Published]) -> str:
    within = statistics.fmean(abs(row.time_error()) <= 0.25 for row in rows)
    return f"| {name} | {len(rows)} | {median_time_error(rows):.1%} | {within:.0%} |"


def _title(source: str) -> str:
    if source == MEASURED:
        return "Trainyard"
    parts = source.split("/")
    if "gist.github.com" in source:
        return f"{parts[3]} (gist)"
    return "/".join(parts[3:5]) if "github.com" in source else parts[2]


def _table(rows: list[Published]) -> list[str]:
    lines = [
        "| model | GPUs | engine | micro × accumulation × length | precision | checkpointing | compiled | tokens/s/GPU "
        "| predicted | error | GB | predicted | error | |",
        "|---|---|---|---|---|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        training, machines = row.training, row.training.machines
        gpus = f"{machines.nodes} × {machines.gpus_per_node} {machines.gpu.name}"
        memory = ("", "", "")
        if row.memory_bytes is not None and row.memory_error is not None:
            memory = (
                f"{row.memory_bytes / 1e9:.1f}",
                f"{row.predicted_memory_bytes / 1e9:.1f}",
                f"{row.memory_error:+.0%}",
            )
        cells = (
            _model(training),
            gpus,
            training.engine,
            f"{training.micro_batch_size} × {training.accumulation_steps} × {training.sequence_length}",
            training.precision,
            training.activation_checkpointing,
            "yes" if training.compiled else "",
            *_time(row),
            *memory,
            "; ".join(filter(None, (_use(row), _network(row), row.note))),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    for file, text in ((PAGE, page()), (INTERVALS_FILE, intervals_csv())):
        if "--check" not in sys.argv[1:]:
            file.write_text(text, encoding="utf-8")
        elif file.read_text(encoding="utf-8") != text:
            sys.exit(f"{file.name} differs from the estimates: run `python docs/generate_estimates.py`")
