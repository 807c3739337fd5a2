"""Query encoders: features of images, crafted images, and whether an encoder works at all."""
