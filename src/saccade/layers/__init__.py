"""The parts that models are made of: functions first, modules only project and call them."""
