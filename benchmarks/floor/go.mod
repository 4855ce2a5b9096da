module tessera.gpu/benchmarks/floor

go 1.24
