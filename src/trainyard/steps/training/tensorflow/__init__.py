"""Training with TensorFlow: TF_CONFIG's cluster, Keras models; samples, checkpoints and records are those of all steps.

Nothing here imports torch, which TensorFlow's images do not have.
"""
