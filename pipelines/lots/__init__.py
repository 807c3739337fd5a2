"""Lots: prepare a release so that chance decides what is published, and claim its use later.

vault     what the owner keeps: files, and what they hold
commit    read the images, and fix the lot by one number before anything is drawn
publish   draw, and write what is published and what is held back
"""
