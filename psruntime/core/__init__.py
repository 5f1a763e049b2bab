"""Pure decisions: no clock, threads, sockets, TensorFlow or gRPC in here; time is an argument `now_s`."""
