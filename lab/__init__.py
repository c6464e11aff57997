"""How we know that Isthmus works: benchmarks, the papers run again, theorems that no recipe needs, studies."""
