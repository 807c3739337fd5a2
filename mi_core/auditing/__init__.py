"""An audit in one call, in this process: images and an encoder in, a verdict out; `LeakMeter` watches a training."""
