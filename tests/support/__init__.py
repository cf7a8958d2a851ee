"""What tests of several rooms use: environments, scripted peers, clocks, certificates, forks."""
